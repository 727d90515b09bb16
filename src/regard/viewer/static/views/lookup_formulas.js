// The formula, for one query: e_j = energy(q, k_j), w = normalize(e), z = Σ_j w_j v_j.
// What `regard.attend` computes with the parts of the same names; tests/static/ holds the two together.
import { NEAR, ROTARY_BASE } from "../data/constants.js";

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const length = (a) => Math.hypot(...a);
const distance = (a, b) => Math.hypot(...a.map((x, i) => x - b[i]));

// A zero vector matches nothing: 0.
const cosine = (q, k) => dot(q, k) / (length(q) * length(k) || 1);

export const ENERGIES = {
  Exact: { equation: "e = 1 where q = k, else 0", of: (q, k) => (q.every((x, i) => x === k[i]) ? 1 : 0) },
  InverseDistance: { equation: "e = 1 / |q − k|", of: (q, k) => 1 / Math.max(distance(q, k), NEAR) },
  Gaussian: {
    equation: "e = −|q − k|² / 2σ²",
    of: (q, k, { sigma }) => -0.5 * (distance(q, k) / sigma) ** 2,
    parameter: { name: "sigma", label: "σ", least: 0.05, most: 100, start: 1 },
  },
  Cosine: { equation: "e = q·k / |q| |k|", of: cosine },
  Dot: { equation: "e = q·k", of: dot },
  ScaledDot: { equation: "e = q·k / √d", of: (q, k) => dot(q, k) / Math.sqrt(q.length) },
};

export const NORMALIZERS = {
  Proportional: { equation: "w = e / Σ e", of: proportional },
  Softmax: {
    equation: "w = exp(e / T) / Σ exp(e / T)",
    of: softmax,
    parameter: { name: "temperature", label: "temperature T", least: 0.05, most: 20, start: 1 },
  },
  Sparsemax: { equation: "w = max(e − τ, 0)", of: (e) => entmax(e, { alpha: 2 }) },
  Entmax: {
    equation: "w = max((α − 1) e − τ, 0)^(1/(α − 1))",
    of: entmax,
    parameter: { name: "alpha", label: "α", least: 1.05, most: 4, start: 1.5 },
  },
  Hard: { equation: "w = 1 for the best key", of: hard },
  Unnormalized: { title: "None: the sum Σ e v", equation: "w = e", of: (e) => e },
};

// One energy per key; null for a key that is masked. `where` has the kind of positions and the query's own; key j has j.
export function energies(name, query, keys, mask, parameters = {}, where = { positions: "none", at: 0 }) {
  const { vector, bias } = POSITIONS[where.positions];
  const q = vector(query, where.at);
  const energy = (key, j) => ENERGIES[name].of(q, vector(key, j), parameters) + bias(j - where.at, parameters);
  return keys.map((key, j) => (mask[j] ? null : energy(key, j)));
}

// One weight per key. A masked key gets 0, and so does every key where all are masked.
export function weights(name, e, parameters = {}) {
  const open = e.filter((x) => x !== null);
  if (!open.length) return e.map(() => 0);
  const w = NORMALIZERS[name].of(open, parameters);
  let at = 0;
  return e.map((x) => (x === null ? 0 : w[at++]));
}

// z = Σ_j w_j v_j, for vectors.
export function average(w, values) {
  return values[0].map((_, d) => w.reduce((sum, x, j) => sum + x * values[j][d], 0));
}

function proportional(e) {
  const least = Math.min(...e);
  if (least < 0)
    throw new RangeError(`Proportional needs energies ≥ 0, got ${least.toPrecision(4)}; take Softmax, which takes any`);
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => (sum === 0 ? 0 : x / sum));
}

function softmax(e, { temperature }) {
  const most = Math.max(...e);
  const raised = e.map((x) => Math.exp((x - most) / temperature));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((x) => x / sum);
}

// τ by bisection: the weights add up to 1 or more at the lower end, to 1 or less at the upper. α = 2 is sparsemax.
function entmax(e, { alpha }) {
  const most = Math.max(...e);
  const x = e.map((one) => (one - most) * (alpha - 1)); // near zero, where floats are dense
  const raised = (tau) => x.map((one) => Math.max(one - tau, 0) ** (1 / (alpha - 1)));
  const total = (w) => w.reduce((a, b) => a + b, 0);
  let low = -1;
  let high = -(x.length ** (1 - alpha));
  for (let bit = 0; bit < 55; bit++) {
    const middle = (low + high) / 2;
    if (total(raised(middle)) >= 1) low = middle;
    else high = middle;
  }
  const w = raised((low + high) / 2);
  const sum = total(w);
  return w.map((one) => one / sum); // what the last bit left over
}

function hard(e) {
  const best = e.indexOf(Math.max(...e));
  return e.map((_, j) => (j === best ? 1 : 0));
}

// Positions: what a query at position p and a key at position j are told about where they stand.
// As regard.layers.SinusoidalPositions, regard.Rotary and regard.Alibi; tests/static/ holds the two together.

/** Angles of the planes at a position: p · base^(−i/planes). */
const angles = (position, planes) => Array.from({ length: planes }, (_, i) => position * ROTARY_BASE ** (-i / planes));

/** PE(p): sine and cosine take turns. */
const sinusoid = (position, width) =>
  angles(position, width / 2).flatMap((angle) => [Math.sin(angle), Math.cos(angle)]);

/** A vector rotated in the planes (x_i, x_{i + d/2}). */
function rotated(vector, position) {
  const planes = vector.length / 2;
  const turns = angles(position, planes);
  return vector.map((x, d) => {
    const angle = turns[d % planes];
    const other = d < planes ? -vector[d + planes] : vector[d - planes];
    return x * Math.cos(angle) + other * Math.sin(angle);
  });
}

// `vector` is what becomes of q or k at a position, `bias` what is added to the energy of a key `distance` = j − p away.
export const POSITIONS = {
  none: { title: "None", equation: "", vector: (x) => x, bias: () => 0 },
  sinusoidal: {
    title: "Sinusoidal",
    equation: "q + PE(p), k + PE(j)",
    even: true,
    vector: (x, position) => sinusoid(position, x.length).map((add, d) => x[d] + add),
    bias: () => 0,
  },
  rotary: {
    title: "Rotary",
    equation: "R(p) q, R(j) k",
    even: true,
    vector: rotated,
    bias: () => 0,
  },
  alibi: {
    title: "ALiBi",
    equation: "e − m |p − j|",
    vector: (x) => x,
    bias: (distance, { slope }) => -slope * Math.abs(distance),
    parameter: { name: "slope", label: "slope m", least: 0.01, most: 2, start: 0.5 },
  },
};

export const MOST_POSITION = 31;

/** `attend(q, K, V, …)` for the state of the view; "" for labels, which `lookup` takes. */
export function pythonCall(now, query, values) {
  if (!Array.isArray(query) || !values.every(Array.isArray)) return "";
  const energy = placed(now, made(now.energy, ENERGIES, now.parameters));
  const normalize = made(now.normalize, NORMALIZERS, now.parameters);
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
