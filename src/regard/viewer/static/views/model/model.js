// Model: every head of every layer as a small map, in place or sorted, with what it does; one of them large beside.

import { callName, isNumbered, ownName } from "../../data/calls.js";
import { SMALL_MAP_SIDE } from "../../data/constants.js";
import { choice, el, segments } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";
import { copy, HeadDetails, STATISTICS } from "./head_details.js";
import { modelPicture, modelTable } from "./model_export.js";
import { badge, rank } from "./pattern_badges.js";
import { SmallMaps } from "./small_maps.js";

/** Statistics and patterns of the traces that were looked at: they take a while to compute. */
const known = new WeakMap();

/** @type {View} */
export const model = {
  name: "model",
  title: "Model",
  hint: "Every head of every layer: choose one to see it large",
  needs: "trace",
  tokensOnly: true,
  tour: {
    title: "All heads at once",
    text: "Every head of every layer as a small map, with what it does below. The page now opens one after another; click any to see it large.",
    act: openHeads,
  },
  mount: (root, context) => new Model(root, context),
};

/** What the tour does here: a head of the first, the middle and the last layer. @param {TourStage} stage */
async function openHeads({ state, trace: { calls }, pause }) {
  for (const share of [0, 0.5, 1]) {
    const { id, heads } = calls[Math.floor(share * (calls.length - 1))];
    state.set({ call: id, head: Math.floor(share * (heads - 1)) });
    await pause(1300);
  }
}

class Model {
  /** @type {State} */
  state;

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.ending = new AbortController();
    this.base = `/api/traces/${encodeURIComponent(this.trace.id)}`;
    this.cells = this.trace.calls.flatMap((call) =>
      Array.from({ length: call.heads }, (_, head) => ({ call, head, values: {}, labels: [], badges: [], p: {} })),
    );
    this.sortBox = el("span");
    this.pools = segments(
      "Pooling",
      [
        ["max", "Largest"],
        ["mean", "Mean"],
      ],
      "max",
      (pool) => this.context.state.set({ pool: pool === "mean" ? "mean" : null }),
    );
    this.maps = new SmallMaps(context, this.ending.signal, () => this.paint());
    this.note = el("p.quietly.small", { role: "status" });
    this.grid = el("div.thumbs", { role: "group", "aria-label": "Heads", "data-arrows": true });
    this.grid.addEventListener("keydown", (event) => this.rove(event));
    this.details = new HeadDetails(context, (cell, view) => this.go(cell, view));
    root.append(
      el("div.controls", {}, this.sortBox, el("span.field", {}, el("span", {}, "Cells show the"), this.pools)),
      el(
        "div.split",
        {},
        el("div.drawing.plain", {}, this.note, this.grid),
        this.details.answer.button,
        this.details.root,
      ),
    );
    for (const cell of this.cells) {
      cell.canvas = el("canvas", { width: SMALL_MAP_SIDE, height: SMALL_MAP_SIDE, "aria-hidden": "true" });
      cell.name = `${ownName(this.trace, cell.call)}.${cell.head}`;
      cell.text = el("span.caption");
      cell.button = el(
        "button.thumb",
        { type: "button", onclick: () => this.choose(cell), ondblclick: () => this.go(cell, "heads") },
        cell.canvas,
        cell.text,
      );
    }
    this.update(context.state.get());
    this.load();
  }

  async load() {
    const { source, fail } = this.context;
    const found = known.get(this.trace) ?? {};
    known.set(this.trace, found);
    const ask = async (name, use) => {
      try {
        found[name] ??= await source.get(`${this.base}/${name}`, { entry: this.state.entry ?? 0 }, this.ending.signal);
        use(found[name]);
      } catch (error) {
        fail(error);
      }
    };
    await Promise.all([this.loadMaps(), ask("stats", (stats) => this.addStats(stats))]);
    await ask("patterns", (patterns) => this.addPatterns(patterns));
  }

  loadMaps() {
    return this.maps.load(this.state.pool ?? "max", this.state.entry ?? 0);
  }

  addStats(found) {
    for (const cell of this.cells) {
      const one = found.calls.find(({ id }) => id === cell.call.id);
      for (const name of Object.keys(STATISTICS)) if (one?.[name]) cell.values[name] = one[name][cell.head];
      if (cell.call.query_side === "target") delete cell.values.prompt; // a translator has a source, no prompt
      cell.from = one && one.rows < one.of ? `from ${one.rows} of ${one.of} queries` : "";
    }
    this.update(this.context.state.get());
  }

  addPatterns(found) {
    this.details.thresholds = found.thresholds ?? {};
    this.details.why = found.why;
    for (const head of found.heads) {
      const cell = this.cells.find((one) => one.call.id === head.call && one.head === head.head);
      if (cell) Object.assign(cell, { scores: head.scores, labels: head.labels, p: head.p });
    }
    rank(this.cells);
    this.update(this.context.state.get());
  }

  // State

  update(state) {
    const before = this.state ?? {};
    this.state = state;
    this.pools.show(state.pool ?? "max");
    if (this.maps.maps && this.maps.pool !== (state.pool ?? "max")) this.loadMaps();
    const scored = this.cells.find((cell) => cell.scores)?.scores ?? {};
    const options = [
      ["", "layer and head"],
      ...Object.keys(STATISTICS)
        .filter((name) => name in this.cells[0].values)
        .map((name) => [name, STATISTICS[name]]),
      ...Object.keys(scored)
        .filter((name) => !(name in STATISTICS))
        .map((name) => [name, name]),
    ];
    const sort = state.sort ?? "";
    this.sortBox.replaceChildren(
      choice("Order by", options, sort, (name) => this.context.state.set({ sort: name || null })),
    );
    this.order = sort
      ? [...this.cells].sort((a, b) => (this.score(b, sort) ?? -1) - (this.score(a, sort) ?? -1))
      : this.cells;
    this.lay(sort);
    this.chosen = this.cells.find((cell) => cell.call.id === state.call && cell.head === (state.head ?? 0)) ?? null;
    for (const cell of this.cells) {
      const on = cell === this.chosen;
      cell.button.setAttribute("aria-pressed", String(on));
      cell.button.tabIndex = on || (!this.chosen && cell === this.order[0]) ? 0 : -1;
    }
    if (this.theme !== this.context.theme) this.paint();
    if (!this.chosen) this.details.summary(this.cells.length);
    else if (this.chosen !== this.details.shown || before.pool !== state.pool || before.entry !== state.entry)
      this.details.show(this.chosen, state);
    else this.details.describe(this.chosen);
  }

  score(cell, name) {
    return cell.values[name] ?? cell.scores?.[name] ?? null;
  }

  /** In place a row is a layer, and has its name above it where that is no number; sorted, the maps flow. */
  lay(sort) {
    const numbered = isNumbered(this.trace);
    for (const cell of this.cells) {
      cell.score = sort ? this.score(cell, sort) : null;
      cell.caption = sort || numbered ? cell.name : `head ${cell.head}`;
      const parts = cell.caption.split(/(?<=\.)/).flatMap((part) => [el("wbr"), part]); // lines end after dots
      const figure = cell.score == null ? [] : [el("span.figure", {}, number(cell.score))];
      cell.text.replaceChildren(el("span.name", {}, ...parts), ...figure, ...cell.badges.map(badge));
      const words = [`Layer ${callName(this.trace, cell.call)}, head ${cell.head}`, ...labels(cell)];
      const value = cell.score == null ? "" : `: ${sort} ${number(cell.score)}`;
      cell.button.setAttribute("aria-label", words.join(", ") + value);
      cell.button.title = words.join(", ");
    }
    this.place(sort);
    // Wide enough for the longest word below a map, which may reach into the gap: none is cut.
    const words = [...this.grid.querySelectorAll(".label")].map(
      (label) => /** @type {HTMLElement} */ (label).offsetWidth,
    );
    this.grid.style.setProperty("--least", `${Math.max(0, ...words) - 4}px`);
  }

  place(sort) {
    const key = this.order.map((cell) => cell.name).join();
    if (key === this.laid) return;
    this.laid = key;
    const { calls } = this.trace;
    this.grid.classList.toggle("sorted", Boolean(sort));
    this.grid.classList.toggle("named", !isNumbered(this.trace));
    this.grid.style.setProperty("--columns", String(Math.max(...calls.map((call) => call.heads))));
    if (sort) this.grid.replaceChildren(...this.order.map((cell) => cell.button));
    else
      this.grid.replaceChildren(
        ...calls.map((call) => {
          const title = isNumbered(this.trace) ? null : el("p.layer-name", {}, call.name);
          return el(
            "div.layer",
            {},
            title,
            ...this.cells.filter((cell) => cell.call === call).map((one) => one.button),
          );
        }),
      );
  }

  choose(cell) {
    this.context.state.set({ call: cell.call.id, head: cell.head });
    this.context.announce(cell.button.getAttribute("aria-label"));
  }

  go(cell, view) {
    this.context.state.set({ view, call: cell.call.id, head: cell.head, heads: view === "heads" ? [cell.head] : null });
  }

  rove(event) {
    const at = this.order.findIndex((cell) => cell.button === document.activeElement);
    const across = this.state.sort ? this.perRow() : this.order[Math.max(0, at)].call.heads;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    const next = this.order[at + step];
    if (!step || at < 0) return;
    event.preventDefault();
    if (!next) return;
    next.button.focus();
    this.choose(next);
  }

  perRow() {
    const top = this.order[0].button.offsetTop;
    return Math.max(
      1,
      this.order.findIndex((cell) => cell.button.offsetTop > top),
    );
  }

  // Drawing

  paint() {
    this.theme = this.context.theme;
    this.note.textContent = this.maps.progress;
    if (!this.maps.maps) return;
    const { data, shape } = this.maps.maps;
    const [, height, width] = shape;
    this.cells.forEach((cell, at) => {
      const part = data.subarray(at * height * width, (at + 1) * height * width);
      copy({ data: part, width, height }, (x) => x / 255, this.context.palette, cell.canvas);
    });
    this.details.paint();
    if (!this.maps.progress)
      this.note.textContent = `${this.maps.cellWords()}; each map goes from 0 to its own largest cell (square-root scale).`;
  }

  // Export and tests

  picture() {
    const title = (call) => (isNumbered(this.trace) ? "" : call.name);
    const rows = this.state.sort ? null : this.trace.calls.map((call) => [call, title(call)]);
    return modelPicture(this.order, rows, getComputedStyle(this.grid));
  }

  legend() {
    return { to: "largest", words: "each map from 0 to its own largest weight (square-root scale)" };
  }

  table() {
    return modelTable(this.cells, this.order);
  }

  drawn() {
    const cells = this.order.map((cell) => ({
      call: cell.call.id,
      head: cell.head,
      labels: cell.labels,
      values: cell.values,
      scores: cell.scores ?? null,
    }));
    const { maps: thumbs } = this.maps;
    const { large } = this.details;
    return {
      sort: this.state.sort ?? null,
      cells,
      thumbs: thumbs && { shape: thumbs.shape, peaks: thumbs.peaks, data: Array.from(thumbs.data) },
      large: large && { shape: large.shape, data: Array.from(large.data), computed: large.computed },
    };
  }

  destroy() {
    this.details.close();
    this.ending.abort();
  }
}

function labels(cell) {
  return cell.badges.map(({ label }) => label);
}
