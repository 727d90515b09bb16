// The playground's tables: what one starts from, what a link may say, and how a cell's text becomes a vector.
import { ENERGIES, NORMALIZERS } from "./lookup_formulas.js";
import { MOST_POSITION, POSITIONS } from "./lookup_positions.js";

// Each is a full state of the view. Words and their features are made up by hand, as in docs/tour.md.
export const TABLES = {
  phones: {
    title: "Phone book",
    story: "A dictionary is attention that matches exactly or not at all.",
    energy: "Exact",
    normalize: "Proportional",
    query: "Bob Smith",
    rows: [
      { key: "Alice Johnson", value: "555-1234" },
      { key: "Bob Smith", value: "555-5678" },
      { key: "Carol Davis", value: "555-8765" },
      { key: "Dave Martin", value: "555-4321" },
      { key: "Eve Clark", value: "555-3456" },
    ],
  },
  sums: {
    title: "Sums",
    story:
      "Without a normalizer the values of equal keys add up: how many apples were sold? With Proportional it is their average.",
    energy: "Exact",
    normalize: "Unnormalized",
    query: "apples",
    rows: [
      { key: "apples", value: "3" },
      { key: "pears", value: "2" },
      { key: "apples", value: "4" },
      { key: "plums", value: "12" },
    ],
  },
  boxes: {
    title: "Boxes",
    story: "A box of 300 weighs 30 pounds, one of 400 weighs 40. What does one of 360 weigh? Drag the line and see.",
    energy: "InverseDistance",
    normalize: "Proportional",
    query: "360",
    rows: [
      { key: "300", value: "30" },
      { key: "400", value: "40" },
    ],
  },
  points: {
    title: "Points",
    story: "Six places with a number each; the answer anywhere between them is their weighted average. Drag the query.",
    energy: "Gaussian",
    normalize: "Softmax",
    parameters: { sigma: 1.2 },
    query: "4.2, 3.1",
    rows: [
      { key: "1.2, 1.4", value: "8" },
      { key: "2.1, 4.6", value: "14" },
      { key: "4.6, 2.2", value: "21" },
      { key: "5.4, 4.9", value: "12" },
      { key: "7.6, 1.3", value: "17" },
      { key: "8.3, 4.1", value: "5" },
    ],
  },
  words: {
    title: "Words",
    story:
      "Every word asks every word, and becomes their weighted average: “bird” takes time from “early”, action from “catches”.",
    energy: "Dot",
    normalize: "Softmax",
    features: ["animal", "action", "time", "article"],
    query: "1.5, 0.4, 0.2, 0",
    rows: [
      ["The", "0, 0, 0, 1"],
      ["early", "0.9, 0, 1.6, 0"],
      ["bird", "1.5, 0.4, 0.2, 0"],
      ["catches", "0.7, 1.6, 0.1, 0"],
      ["the", "0, 0, 0, 1"],
      ["worm", "1.2, 0.5, 0, 0"],
    ].map(([label, vector]) => ({ label, key: vector, value: vector })),
  },
  order: {
    title: "Order",
    story:
      "“dog bites man” has the same words as “man bites dog”. Only positions tell the two men apart: move the query along.",
    energy: "Dot",
    normalize: "Softmax",
    positions: "rotary",
    at: 1,
    features: ["person", "animal", "action", "article"],
    query: "1.5, 0, 0.4, 0",
    rows: [
      ["man", "1.5, 0, 0.4, 0"],
      ["bites", "0, 0.3, 1.6, 0"],
      ["dog", "0.2, 1.5, 0.5, 0"],
      ["dog", "0.2, 1.5, 0.5, 0"],
      ["bites", "0, 0.3, 1.6, 0"],
      ["man", "1.5, 0, 0.4, 0"],
    ].map(([label, vector]) => ({ label, key: vector, value: vector })),
  },
};

export const MOST_ROWS = 64;
const USUAL = { sigma: 1, temperature: 1, alpha: 1.5, slope: 0.5 };
const LEAST = { sigma: 0.05, temperature: 0.05, alpha: 1.05, slope: 0 };
const OWN = "relu(e)^2 / sum(relu(e)^2)";

/** One of the tables as a state of the view. */
export function fresh(name) {
  const { energy, normalize, query, parameters, rows, positions = "none", at = 0 } = /** @type {any} */ (TABLES[name]);
  return {
    table: name,
    energy,
    normalize,
    own: OWN,
    positions,
    at,
    parameters: { ...USUAL, ...parameters },
    query,
    rows: rows.map((row) => ({ ...row })),
  };
}

/** What a link says, where it can be shown; null where not: links come from anywhere. {table} alone is that table. */
export function sound(given) {
  if (given && Object.keys(given).join() === "table" && Object.hasOwn(TABLES, given.table)) return fresh(given.table);
  const text = (x) => typeof x === "string" && x.length < 1000;
  const row = (x) => x && text(x.key) && text(x.value) && (x.label === undefined || text(x.label));
  const kinds = { table: TABLES, energy: ENERGIES, normalize: NORMALIZERS };
  const known = given && Object.entries(kinds).every(([name, parts]) => Object.hasOwn(parts, given[name]));
  if (!known || !text(given.query) || !Array.isArray(given.rows)) return null;
  if (given.rows.length > MOST_ROWS || !given.rows.every(row)) return null;
  const parameters = Object.entries(USUAL).map(([name, usual]) => {
    const value = given.parameters?.[name];
    return [name, typeof value === "number" && value >= LEAST[name] ? value : usual];
  });
  // Links made before there were positions and formulas have none of these.
  const positions = Object.hasOwn(POSITIONS, given.positions ?? "") ? given.positions : "none";
  const at = Number.isInteger(given.at) && given.at >= 0 && given.at <= MOST_POSITION ? given.at : 0;
  const own = text(given.own) ? given.own : OWN;
  return { ...given, own, positions, at, parameters: Object.fromEntries(parameters) };
}

/** "300" → [300], "1, 2" → [1, 2]; anything else is a label and stays text. */
export function parsed(text) {
  const parts = text.split(",").map((part) => part.trim());
  const numbers = parts.map(Number);
  return parts.every((part, i) => part !== "" && Number.isFinite(numbers[i])) ? numbers : text.trim();
}

/** A vector as it stands in a cell; a label stays what it is. */
export const written = (vector) => (Array.isArray(vector) ? vector.map((x) => String(x)).join(", ") : vector);

/** Four significant figures, without the zeros that say nothing. */
export function figure(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(2).replace("e+", "e");
  return String(Number(x.toPrecision(4))).replace("-", "−");
}
