// The result of a look-up: energies, weights and their sum, from what is written in the cells.
import { figure, parsed, written } from "./lookup_examples.js";
import { average, energies, weights } from "./lookup_formulas.js";
import { POSITIONS } from "./lookup_positions.js";

/** Everything that is shown, from what is written in the cells. `problem` says what cannot be computed, and why. */
export function computed(now) {
  const query = parsed(now.query);
  const keys = now.rows.map((row) => parsed(row.key));
  const values = now.rows.map((row) => parsed(row.value));
  const found = { query, keys, values, e: null, w: null, z: null, problem: "" };
  if (!keys.length) return { ...found, problem: "The table is empty: add an entry." };
  const words = [query, ...keys].some((x) => !Array.isArray(x));
  if (words && now.energy !== "Exact") {
    const where = Array.isArray(query) ? `key ${keys.findIndex((x) => !Array.isArray(x)) + 1}` : "the query";
    return {
      ...found,
      problem: `${now.energy} compares numbers, and ${where} is not one: write 3, or 1, 2, or take Exact.`,
    };
  }
  const [one, ...rest] = words ? [query, ...keys].map((x) => [written(x)]) : [query, ...keys];
  const odd = rest.findIndex((key) => key.length !== one.length);
  if (odd >= 0) {
    const counts = `The query has ${one.length} numbers and key ${odd + 1} has ${rest[odd].length}`;
    return { ...found, problem: `${counts}: give them equally many.` };
  }
  const { title, even } = POSITIONS[now.positions];
  if (even && (words || one.length % 2)) {
    const what = words ? "these are words" : `these have ${one.length}`;
    return { ...found, problem: `${title} positions need vectors of an even number of components; ${what}.` };
  }
  try {
    const masked = now.rows.map((row) => Boolean(row.masked));
    found.e = energies(now.energy, one, rest, masked, now.parameters, now);
    found.w = weights(now.normalize, found.e, { ...now.parameters, own: now.own });
  } catch (error) {
    return { ...found, problem: error.message };
  }
  return { ...found, ...answer(found) };
}

/** z; a value of any kind where all the weight lies on it. */
function answer({ w, values }) {
  if (!w.some((x) => x !== 0)) return { z: "no key matches" };
  const best = w.indexOf(1);
  if (best >= 0 && w.every((x, j) => j === best || Math.abs(x) < 1e-12)) return { z: values[best] };
  const odd = values.findIndex((value) => !Array.isArray(value) || value.length !== values[0].length);
  if (odd < 0) return { z: average(w, values) };
  return { z: null, problem: `Value ${odd + 1} cannot be averaged: give every value equally many numbers.` };
}

/** z as text. */
export const resultText = (z) => (z === null ? "—" : Array.isArray(z) ? z.map(figure).join(", ") : z);
