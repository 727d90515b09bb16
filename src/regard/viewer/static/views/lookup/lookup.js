// Look-up: a table of keys and values, a query, and the formula between them, as numbers and bars while one drags.
import { choice, el, segments, slider } from "../../draw/dom.js";
import { figure, fresh, MOST_ROWS, sound, TABLES, written } from "./lookup_examples.js";
import { ENERGIES, NORMALIZERS } from "./lookup_formulas.js";
import { makePlot } from "./lookup_plot.js";
import { MOST_POSITION, POSITIONS } from "./lookup_positions.js";
import { computed, resultText } from "./lookup_result.js";
import { fillBar, tableRow } from "./lookup_row.js";
import { FUNCTIONS } from "./normalizer_expression.js";
import { makePositionsPlot } from "./positions_plot.js";
import { pythonCall, shapes } from "./python_call.js";

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

  const tables = segments(
    "Start from",
    Object.entries(TABLES).map(([name, { title }]) => [name, title]),
    now.table,
    start,
  );
  const story = el("p.story");
  const energy = choice(
    "Energy",
    Object.keys(ENERGIES).map((name) => [name, name]),
    now.energy,
    (name) => change({ energy: name }),
  );
  const normalize = choice(
    "Normalizer",
    Object.entries(NORMALIZERS).map(([name, { title }]) => [name, title ?? name]),
    now.normalize,
    (name) => change({ normalize: name }),
  );
  const own = el("input", {
    type: "text",
    "aria-label": "f(e), your own normalizer",
    spellcheck: "false",
    title: `e are the energies, n is their number; ${FUNCTIONS.join(", ")}, + - * / ^ and brackets`,
    oninput: () => change({ own: own.value }),
  });
  const ownField = el("label.field.own", {}, el("span", {}, "f(e) ="), own);
  const kinds = [ENERGIES, NORMALIZERS, POSITIONS].flatMap((parts) => Object.values(parts));
  const sliders = kinds.flatMap((part) => (part.parameter ? [logarithmic(part.parameter)] : []));
  const slope = sliders.filter(({ name }) => name === "slope");
  const positions = segments(
    "Positions",
    Object.entries(POSITIONS).map(([name, { title }]) => [name, title]),
    now.positions,
    (name) => change({ positions: name }),
  );
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
  const table = el("table.lookup-table", {}, el("thead", {}, el("tr", {}, ...heads, el("td"))), body);
  const add = el("button.quiet", { type: "button", onclick: addRow }, "+ entry");
  const result = el("output.result", { "aria-label": "z, the weighted sum" });
  const problem = el("p.problem", { role: "status" });
  const stage = el("div.lookup-plot");
  const drawing = el("div.positions-plot");
  root.replaceChildren(
    el(
      "div.lookup",
      {},
      el("div.lookup-top", {}, tables, story),
      el(
        "div.lookup-choices",
        {},
        energy,
        normalize,
        ...sliders.filter((one) => !slope.includes(one)).map((one) => one.field),
        ownField,
        formula,
        call,
      ),
      el(
        "div.lookup-main",
        {},
        el(
          "div",
          {},
          el("div.asking", {}, el("label", {}, "Query q ", query), asks),
          table,
          el("div.lookup-end", {}, add, result),
          problem,
        ),
        stage,
      ),
      el(
        "section.lookup-positions",
        { "aria-label": "Positions" },
        el(
          "div.lookup-choices",
          {},
          el("h2", {}, "Positions"),
          positions,
          placeOfQuery,
          ...slope.map((one) => one.field),
        ),
        drawing,
      ),
    ),
  );
  const positionsPlot = makePositionsPlot(drawing, { context });
  const plot = makePlot(stage, { context, ask: (vector) => change({ query: written(vector) }), move: moveRow });
  rebuild();

  // Its places are the logarithms of its numbers: a temperature of 0.1 is as far from 1 as 10 is.
  function logarithmic({ name, label, least, most }) {
    const range = [Math.log(least), Math.log(most), "any"];
    const set = (x) => change({ parameters: { ...now.parameters, [name]: Number(Math.exp(x).toPrecision(3)) } });
    return {
      name,
      field: slider(
        label,
        range,
        Math.log(now.parameters[name]),
        (x) => figure(Number(Math.exp(x).toPrecision(3))),
        set,
      ),
    };
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
    const buttons = asking.map((row) =>
      el("button.word", { type: "button", onclick: () => change({ query: row.key }) }, row.label),
    );
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
    ownField.hidden = now.normalize !== "Own";
    if (document.activeElement !== own) own.value = now.own;
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
    result.replaceChildren(el("span.faint", {}, "z = "), resultText(z));
    problem.textContent = shown.problem;
    plot.show(now, shown);
    positionsPlot.show(now);
  }

  return {
    update(state) {
      const given = sound(state.lookup);
      if (given && JSON.stringify(given) !== JSON.stringify(now)) {
        now = given;
        rebuild();
      } else {
        plot.show(now, shown); // the colours may have changed
        positionsPlot.show(now);
      }
    },
    destroy() {
      plot.close();
      positionsPlot.close();
    },
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
