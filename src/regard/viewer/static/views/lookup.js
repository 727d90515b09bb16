// Look-up: a table of keys and values, a query, and the formula between them, as numbers and bars while one drags.
import { choice, el, segments, slider } from "../draw/elements.js";
import {
  average,
  ENERGIES,
  energies,
  MOST_POSITION,
  NORMALIZERS,
  POSITIONS,
  pythonCall,
  shapes,
  weights,
} from "./lookup_formulas.js";
import { makePlot } from "./lookup_plot.js";

/** @type {View} */
export const lookup = {
  name: "lookup",
  title: "Look-up",
  hint: "A query meets keys that carry values: energies become weights, weights an average",
  needs: "nothing",
  mount,
};

function mount(root, context) {
  let now = sound(context.state.get().lookup) ?? fresh("boxes");
  let shown = null;
  let cells = [];

  const tables = segments("Start from", TABLES, now.table, start);
  const story = el("p.story");
  const energy = choice("Energy", ENERGIES, now.energy, (name) => change({ energy: name }));
  const normalize = choice("Normalizer", NORMALIZERS, now.normalize, (name) => change({ normalize: name }));
  const kinds = [ENERGIES, NORMALIZERS, POSITIONS].flatMap((parts) => Object.values(parts));
  const sliders = kinds.flatMap((part) => (part.parameter ? [logarithmic(part.parameter)] : []));
  const slope = sliders.filter(({ name }) => name === "slope");
  const positions = segments("Positions", POSITIONS, now.positions, (name) => change({ positions: name }));
  const placeOfQuery = slider("query at position", [0, MOST_POSITION, 1], now.at, String, (at) => change({ at }));
  const formula = el("p.formula");
  const call = el("p.formula.python");
  const query = el("input", {
    type: "text",
    "aria-label": "Query q",
    spellcheck: "false",
    oninput: () => change({ query: query.value }),
  });
  const asks = el("span.asks");
  const body = el("tbody");
  const heads = ["see", "key k", "energy e", "weight w", "value v"].map((text) => el("th", { scope: "col" }, text));
  const table = el("table.lookup-table", el("thead", el("tr", ...heads, el("td"))), body);
  const add = el("button.quiet", { onclick: addRow }, "+ entry");
  const result = el("output.result", { "aria-label": "z, the weighted sum" });
  const problem = el("p.problem", { role: "status" });
  const stage = el("div.lookup-plot");
  root.replaceChildren(
    el(
      "div.lookup",
      el("div.lookup-top", tables, story),
      el(
        "div.lookup-choices",
        energy,
        normalize,
        ...sliders.filter((one) => !slope.includes(one)).map((one) => one.field),
        formula,
        call,
      ),
      el(
        "div.lookup-main",
        el(
          "div",
          el("div.asking", el("label", "Query q ", query), asks),
          table,
          el("div.lookup-end", add, result),
          problem,
        ),
        stage,
      ),
      el(
        "section.lookup-positions",
        { "aria-label": "Positions" },
        el("div.lookup-choices", el("h2", "Positions"), positions, placeOfQuery, ...slope.map((one) => one.field)),
      ),
    ),
  );
  const plot = makePlot(stage, { context, ask: (vector) => change({ query: written(vector) }), move: moveRow });
  rebuild();

  // Its places are the logarithms of its numbers: a temperature of 0.1 is as far from 1 as 10 is.
  function logarithmic({ name, label, least, most }) {
    const range = [Math.log(least), Math.log(most), "any"];
    const value = (x) => Number(Math.exp(x).toPrecision(3));
    const set = (x) => change({ parameters: { ...now.parameters, [name]: value(x) } });
    return { name, field: slider(label, range, Math.log(now.parameters[name]), (x) => figure(value(x)), set) };
  }

  function start(name) {
    now = fresh(name);
    rebuild();
    save();
    context.announce(`${TABLES[name].title}: ${TABLES[name].story}`);
  }

  function change(patch) {
    now = { ...now, ...patch };
    refresh();
    save();
  }

  function changeRow(at, patch) {
    change({ rows: now.rows.map((row, j) => (j === at ? { ...row, ...patch } : row)) });
  }

  function moveRow(at, patch) {
    for (const [name, text] of Object.entries(patch)) cells[at][name].value = text;
    changeRow(at, patch);
  }

  function addRow() {
    const last = now.rows.at(-1) ?? { key: "0", value: "0" };
    now = { ...now, rows: [...now.rows, { ...last, label: last.label && "new", masked: false }] };
    rebuild();
    save();
    cells.at(-1).key.select();
  }

  function removeRow(at) {
    now = { ...now, rows: now.rows.filter((_, j) => j !== at) };
    rebuild();
    save();
    (cells[Math.min(at, cells.length - 1)]?.remove ?? add).focus();
  }

  function save() {
    context.state.set({ lookup: now });
  }

  /** Rows are made anew where there are more or fewer of them; while one types or drags only numbers change. */
  function rebuild() {
    cells = now.rows.map((row, at) =>
      tableRow(row, at, { changed: (patch) => changeRow(at, patch), removed: () => removeRow(at) }),
    );
    body.replaceChildren(...cells.map((cell) => cell.line));
    const asking = now.rows.filter((row) => row.label);
    const buttons = asking.map((row) => el("button.word", { onclick: () => change({ query: row.key }) }, row.label));
    asks.replaceChildren(...(buttons.length ? ["ask as ", ...buttons] : []));
    add.disabled = now.rows.length >= MOST_ROWS;
    query.value = now.query;
    refresh();
  }

  function refresh() {
    shown = computed(now);
    const { e, w, z } = shown;
    tables.show(now.table);
    story.textContent = TABLES[now.table].story;
    selectIn(energy).value = now.energy;
    selectIn(normalize).value = now.normalize;
    const parts = [ENERGIES[now.energy], POSITIONS[now.positions], NORMALIZERS[now.normalize]];
    for (const { name, field } of sliders) {
      field.hidden = !parts.some((part) => part.parameter?.name === name);
      field.show(Math.log(now.parameters[name]));
    }
    const equations = [...parts.map((part) => part.equation).filter(Boolean), "z = Σ w v"];
    formula.textContent = equations.map((text) => text.replaceAll(" ", "\u00a0")).join("      "); // lines break between
    const code = w ? pythonCall(now, shown.query, shown.values) : "";
    call.textContent = code && `${code}      ${shapes(now, shown.query, shown.values)}`;
    positions.show(now.positions);
    placeOfQuery.hidden = now.positions === "none";
    placeOfQuery.show(now.at);
    table.classList.toggle("placed", now.positions !== "none");
    if (document.activeElement !== query) query.value = now.query;
    for (const [at, button] of [...asks.querySelectorAll("button")].entries()) {
      button.setAttribute("aria-pressed", String(now.rows[at].key === now.query));
    }
    const open = (e ?? []).filter((x) => x !== null);
    const [least, most] = [Math.min(0, ...open), Math.max(0, ...open)];
    cells.forEach((cell, j) => {
      cell.line.classList.toggle("masked", Boolean(now.rows[j].masked));
      fillBar(cell.energy, e?.[j], least, most);
      fillBar(cell.weight, w?.[j], Math.min(0, ...(w ?? [])), Math.max(1, ...(w ?? [])));
    });
    result.replaceChildren(el("span.faint", "z = "), resultText(z));
    problem.textContent = shown.problem;
    plot.show(now, shown);
  }

  return {
    update(state) {
      const given = sound(state.lookup);
      if (given && JSON.stringify(given) !== JSON.stringify(now)) {
        now = given;
        rebuild();
      } else plot.show(now, shown); // the colours may have changed
    },
    destroy: () => plot.close(),
    picture: () => plot.picture(),
    table: () => [
      ["key", "energy", "weight", "value"],
      ...now.rows.map((row, j) => [row.key, shown.e?.[j] ?? "", shown.w?.[j] ?? "", row.value]),
      ["z", "", "", written(shown.z ?? "")],
    ],
    drawn: () => ({ energies: shown.e, weights: shown.w, z: shown.z, problem: shown.problem, call: call.textContent }),
  };
}

function selectIn(field) {
  return /** @type {HTMLSelectElement} */ (field.querySelector("select"));
}

/** A row of the table: its cells, and bars of its energy and weight. `changed(patch)`: one of them was edited. */
function tableRow(row, at, { changed, removed }) {
  const input = (name) => {
    const box = el("input", {
      type: "text",
      value: row[name],
      "aria-label": `${name} ${at + 1}`,
      spellcheck: "false",
      oninput: () => changed({ [name]: box.value }),
    });
    return box;
  };
  const see = el("input", {
    type: "checkbox",
    checked: !row.masked,
    "aria-label": `see key ${at + 1}`,
    onchange: () => changed({ masked: !see.checked }),
  });
  const remove = el("button.strike", { "aria-label": `remove entry ${at + 1}`, onclick: () => removed() }, "×");
  const [key, value, energyBar, weightBar] = [input("key"), input("value"), bar("energy"), bar("weight")];
  const named = el(
    "span.row-key",
    el("span.row-place", String(at)),
    row.label ? el("span.row-label", row.label) : null,
    key,
  );
  const inside = [see, named, energyBar.root, weightBar.root, value, remove].map((child) => el("td", child));
  return { line: el("tr", ...inside), key, value, energy: energyBar, weight: weightBar, remove };
}

function bar(kind) {
  const [number, mark] = [el("span.figure"), el(`span.fill.${kind}`)];
  return { root: el("span.barred", number, el("span.track", mark)), number, mark };
}

/** A bar from zero; where no number is above zero, as with negative distances, from the least: the best is the longest. */
function fillBar({ number, mark }, value, least, most) {
  number.textContent = value == null ? "—" : figure(value);
  const range = most - least || 1;
  const ground = most <= 0 ? least : 0;
  const [from, to] = value == null ? [0, 0] : [Math.min(value, ground), Math.max(value, ground)];
  mark.style.left = `${((from - least) / range) * 100}%`;
  mark.style.width = `${((to - from) / range) * 100}%`;
}

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
    found.w = weights(now.normalize, found.e, now.parameters);
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
const resultText = (z) => (z === null ? "—" : Array.isArray(z) ? z.map(figure).join(", ") : z);

// The playground's tables: what one starts from, what a link may say, and how a cell's text becomes a vector.

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

const MOST_ROWS = 64;
const USUAL = { sigma: 1, temperature: 1, alpha: 1.5, slope: 0.5 };
const LEAST = { sigma: 0.05, temperature: 0.05, alpha: 1.05, slope: 0 };

/** One of the tables as a state of the view. */
export function fresh(name) {
  const { energy, normalize, query, parameters, rows, positions = "none", at = 0 } = /** @type {any} */ (TABLES[name]);
  return {
    table: name,
    energy,
    normalize,
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
  // Links made before there were positions have none of these.
  const positions = Object.hasOwn(POSITIONS, given.positions ?? "") ? given.positions : "none";
  const at = Number.isInteger(given.at) && given.at >= 0 && given.at <= MOST_POSITION ? given.at : 0;
  return { ...given, positions, at, parameters: Object.fromEntries(parameters) };
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
