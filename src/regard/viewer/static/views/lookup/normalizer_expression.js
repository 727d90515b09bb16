// A normalizer of one's own, written as a formula of the energies: "relu(e)^2 / sum(relu(e)^2)".
// Parsed here, never handed to eval: links carry formulas, and links come from anywhere.

const ELEMENTWISE = {
  exp: Math.exp,
  log: Math.log,
  sqrt: Math.sqrt,
  abs: Math.abs,
  relu: (x) => Math.max(x, 0),
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
};
const OVER_KEYS = {
  sum: (all) => all.reduce((a, b) => a + b, 0),
  mean: (all) => all.reduce((a, b) => a + b, 0) / all.length,
  max: (all) => Math.max(...all),
  min: (all) => Math.min(...all),
};
const OPERATORS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  "^": (a, b) => a ** b,
};
const DEEPEST = 64; // of brackets: more than anyone writes, fewer than would exhaust the stack

export const FUNCTIONS = [...Object.keys(ELEMENTWISE), ...Object.keys(OVER_KEYS)];

/** One weight per energy. Throws RangeError, with words for the reader, where the formula has no such value. */
export function evaluated(text, energies) {
  const tokens = text.match(/\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|[a-z]+|\S/gi) ?? [];
  let [at, depth] = [0, 0];
  const next = () => tokens[at];
  const zip = (name, a, b) => a.map((x, j) => OPERATORS[name](x, b[j]));

  function chain(names, operand) {
    let left = operand();
    while (names.includes(next())) left = zip(tokens[at++], left, operand());
    return left;
  }
  const sum = () => chain(["+", "-"], product);
  const product = () => chain(["*", "/"], signed);
  function signed() {
    if (next() !== "-") return power();
    at++;
    return nested(signed).map((x) => -x);
  }
  function power() {
    const base = atom();
    if (next() !== "^") return base;
    at++;
    return zip("^", base, nested(signed));
  }
  function atom() {
    const token = tokens[at++];
    if (token === "(") return bracketed();
    if (token === "e") return energies;
    if (token === "n") return energies.map(() => energies.length);
    if (token !== undefined && /^[.\d]/.test(token)) return energies.map(() => Number(token));
    if (!FUNCTIONS.includes(token)) throw new RangeError(wrong(token));
    if (tokens[at++] !== "(") throw new RangeError(`${token} needs brackets: ${token}(e)`);
    const inside = bracketed();
    if (token in ELEMENTWISE) return inside.map(ELEMENTWISE[token]);
    const over = OVER_KEYS[token](inside);
    return inside.map(() => over);
  }
  function bracketed() {
    const inside = nested(sum);
    if (tokens[at++] !== ")") throw new RangeError("a bracket is not closed");
    return inside;
  }
  function nested(rule) {
    if (++depth > DEEPEST) throw new RangeError("too many brackets");
    const value = rule();
    depth--;
    return value;
  }

  const weights = sum();
  if (at < tokens.length) throw new RangeError(wrong(tokens[at]));
  const odd = weights.findIndex((w) => !Number.isFinite(w));
  if (odd >= 0) throw new RangeError(`the weight of an energy of ${energies[odd].toPrecision(4)} is no number`);
  return weights;
}

function wrong(token) {
  const known = `e (the energies), n (their number), ${FUNCTIONS.join(", ")}, + - * / ^ and brackets`;
  return token === undefined ? "the formula ends too early" : `“${token}” is not understood here; there are ${known}`;
}
