// The badge: whether what is shown is what the model computed, and by how much W·v is off, call by call.
import { el } from "../draw/dom.js";
import { number } from "../draw/numbers.js";

const WORDS = { true: "proved", false: "not what was computed", null: "not proved" };

/** A button that says it in a word; pressed, it shows the table. */
export function proofButton() {
  const dialog = el("dialog.proof", { "aria-label": "Proof" });
  const button = el("button.badge", { type: "button", "aria-haspopup": "dialog", onclick: () => dialog.showModal() });
  const holder = el("div.holder", {}, button, dialog);
  const show = (trace, callId) => {
    holder.hidden = !trace;
    if (!trace) return;
    const call = trace.calls.find((one) => one.id === callId);
    const faith = call ? call.fidelity : { kept: trace.faithful, error: worst(trace) };
    const error = faith.error == null ? "" : ` · ${number(faith.error)}`;
    button.dataset.kept = String(faith.kept ?? null);
    button.textContent = `${WORDS[String(faith.kept ?? null)]}${error}`;
    button.title = "How far W·v is from what the model computed";
    dialog.replaceChildren(...table(trace), el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  };
  return Object.assign(holder, { show });
}

function worst(trace) {
  const errors = trace.calls.map((call) => call.fidelity?.error).filter((error) => error != null);
  return errors.length ? Math.max(...errors) : null;
}

function table(trace) {
  const rows = trace.calls.map((call) => {
    const { error, budget, kept, word } = call.fidelity ?? {};
    const verdict = WORDS[String(kept ?? null)] + (word ? ` (${word})` : "");
    return el(
      "tr",
      { "data-kept": String(kept ?? null) },
      ...[call.name, call.kind, call.heads, call.queries, call.keys, call.origin].map((cell) =>
        el("td", {}, String(cell)),
      ),
      el("td", {}, error == null ? "–" : number(error)),
      el("td", {}, budget == null ? "–" : number(budget)),
      el("td", {}, verdict),
    );
  });
  const titles = ["layer", "kind", "heads", "queries", "keys", "computed by", "error", "allowed", "verdict"];
  const words =
    "The weights are computed from the queries and keys the model used. Multiplied with its values they must give what " +
    "the model gave: the error is |W·v − out| / |out|, and “allowed” is what rounding explains.";
  return [
    el("h2", {}, "Is this what the model computed?"),
    el("p", {}, words),
    el(
      "div.scroll",
      { tabIndex: 0, role: "region", "aria-label": "Every call" },
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, ...rows),
      ),
    ),
  ];
}
