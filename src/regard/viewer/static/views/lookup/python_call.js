// What the playground shows as one call of regard, with the shapes that go in and come out.
import { ENERGIES, NORMALIZERS } from "./lookup_formulas.js";

/** `attend(q, K, V, …)` for the state of the view; "" for labels, which `lookup` takes. */
export function pythonCall(now, query, values) {
  if (!Array.isArray(query) || !values.every(Array.isArray)) return "";
  const energy = placed(now, made(now.energy, ENERGIES, now.parameters));
  const normalize = now.normalize === "Own" ? "f" : made(now.normalize, NORMALIZERS, now.parameters);
  const masked = now.rows.some((row) => row.masked);
  const mask = masked
    ? `, mask=torch.tensor([[${now.rows.map((row) => (row.masked ? "False" : "True")).join(", ")}]])`
    : "";
  const inputs = {
    sinusoidal: `q + PE[${now.at}], K + PE[:${now.rows.length}], V`,
    alibi: "q[None, None], K[None], V[None]",
  };
  return `attend(${inputs[now.positions] ?? "q, K, V"}, energy=${energy}, normalize=${normalize}${mask})`;
}

/** "q [2], K [6, 2], V [6, 1] → z [1]": one query is a vector. */
export function shapes(now, query, values) {
  const [d, n] = [query.length, now.rows.length];
  const text = `q [${d}], K [${n}, ${d}], V [${n}, ${values[0].length}] → z [${values[0].length}]`;
  return text.replaceAll(" ", "\u00a0"); // on one line
}

function made(name, parts, parameters) {
  const own = parts[name].parameter;
  return `${name}(${own ? parameters[own.name] : ""})`;
}

function placed({ positions, at, parameters }, energy) {
  if (positions === "rotary") return `Rotary(${energy}, offset=${at})`;
  if (positions === "alibi") return `Modified(${energy}, Alibi(torch.tensor([${parameters.slope}]), offset=${at}))`;
  return energy;
}
