// Model: every head of every layer as a small map, in place or sorted, with what it does; one of them large beside.
import { SMALL_MAP_SIDE } from "../data/constants.js";
import { Tiles } from "../data/tiles.js";
import {
  callName,
  callPath,
  chosenQuery,
  isNumbered,
  ownName,
  patternMeaning,
  patternSentence,
  STATISTIC_MEANINGS,
  sideOf,
} from "../data/tokens.js";
import { context2d, inks, onPaper, shortened } from "../draw/canvas.js";
import { colored } from "../draw/colors.js";
import { choice, counted, el, number, table } from "../draw/elements.js";

/** Statistics and patterns of the traces that were looked at: they take a while to compute. */
const known = new WeakMap();

/** @type {View} */
export const model = {
  name: "model",
  title: "Model",
  hint: "Every head of every layer: choose one to see it large",
  needs: "trace",
  tokensOnly: true,
  mount: (root, context) => new Model(root, context),
};

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
    this.maps = new SmallMaps(context, this.ending.signal, () => this.paint());
    this.note = el("p.quietly.small", { role: "status" });
    this.grid = el("div.thumbs", { role: "group", "aria-label": "Heads", "data-arrows": true });
    this.grid.addEventListener("keydown", (event) => this.rove(event));
    this.details = new HeadDetails(context, (cell, view) => this.go(cell, view));
    root.append(
      el("div.controls.folds", this.sortBox),
      el("div.split", el("div.drawing.plain", this.note, this.grid), this.details.root),
    );
    for (const cell of this.cells) {
      cell.canvas = el("canvas", { width: SMALL_MAP_SIDE, height: SMALL_MAP_SIDE, "aria-hidden": "true" });
      cell.name = `${ownName(this.trace, cell.call)}.${cell.head}`;
      cell.text = el("span.caption");
      cell.button = el(
        "button.thumb",
        { onclick: () => this.choose(cell), ondblclick: () => this.go(cell, "heads") },
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
    await Promise.all([this.maps.load(this.state.entry ?? 0), ask("stats", (stats) => this.addStats(stats))]);
    await ask("patterns", (patterns) => this.addPatterns(patterns));
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
    else if (this.chosen !== this.details.shown || before.entry !== state.entry) this.details.show(this.chosen, state);
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
      const figure = cell.score == null ? [] : [el("span.figure", number(cell.score))];
      cell.text.replaceChildren(el("span.name", ...parts), ...figure, ...cell.badges.map(badge));
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
          const title = isNumbered(this.trace) ? null : el("p.layer-name", call.name);
          return el("div.layer", title, ...this.cells.filter((cell) => cell.call === call).map((one) => one.button));
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
    const [side, size] = [SMALL_MAP_SIDE, SMALL_MAP_SIDE ** 2];
    this.cells.forEach((cell, at) => {
      const data = this.maps.maps?.data.subarray(at * size, (at + 1) * size);
      copy({ data, width: side, height: side }, (x) => x / 255, this.context.palette, cell.canvas);
    });
    this.details.paint();
    if (!this.maps.progress)
      this.note.textContent = `${this.maps.cellWords()}; each map goes from 0 to its own largest cell (square-root scale).`;
  }

  // Export and tests

  picture() {
    const title = (call) => (isNumbered(this.trace) ? "" : call.name);
    const rows = this.state.sort ? null : this.trace.calls.map((call) => [call, title(call)]);
    return modelPicture(this.order, rows, this.grid);
  }

  sentence() {
    return this.details.said;
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
    const { maps: thumbs, heads } = this.maps;
    const { large } = this.details;
    const shape = [heads, SMALL_MAP_SIDE, SMALL_MAP_SIDE];
    return {
      sort: this.state.sort ?? null,
      cells,
      thumbs: thumbs && { shape, peaks: thumbs.peaks, data: Array.from(thumbs.data) },
      large: large && { shape: [large.height, large.width], data: Array.from(large.data), computed: large.computed },
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

const LONG = 1 << 26; // weights of a trace from which its maps are fetched layer by layer

/** `changed()` is called as maps arrive; `signal` ends requests. */
class SmallMaps {
  /** All maps, head after head; undefined until some are here. @type {{data: Uint8Array, peaks: number[], note: string} | undefined} */
  maps;

  constructor(context, signal, changed) {
    this.context = context;
    this.trace = context.trace;
    this.base = `/api/traces/${encodeURIComponent(this.trace.id)}`;
    this.signal = signal;
    this.changed = changed;
    this.heads = this.trace.calls.reduce((sum, call) => sum + call.heads, 0);
    /** How far they are, in words; empty once all are here. */
    this.progress = "";
  }

  /** Fetch them; of a long text layer by layer, and the page says how far they are. */
  async load(entry) {
    const { source, fail } = this.context;
    const { calls } = this.trace;
    const [side, params] = [SMALL_MAP_SIDE, { entry, size: SMALL_MAP_SIDE, pool: "max" }];
    const weights = calls.reduce((sum, { heads, queries, keys }) => sum + heads * queries * keys, 0);
    const long = weights > LONG && !source.holds;
    const asked = long ? calls.map(({ id }) => ({ ...params, call: id })) : [params];
    const maps = { data: new Uint8Array(this.heads * side * side), peaks: /** @type {number[]} */ ([]), note: "" };
    try {
      for (const [done, one] of asked.entries()) {
        this.progress = long ? `Computing the maps: ${done} of ${calls.length} layers are here.` : "";
        if (long) this.changed();
        const found = await source.array(`${this.base}/thumbs`, one, this.signal);
        maps.data.set(found.data, maps.peaks.length * side * side);
        maps.peaks.push(...(found.peaks ?? []));
        maps.note = found.note;
        this.maps = maps;
      }
      this.progress = "";
      this.changed();
    } catch (error) {
      fail(error);
    }
  }

  /** What a cell of the small maps is: what the server says of it, or what follows from the lengths. */
  cellWords() {
    const note = this.maps?.note;
    if (note) return note[0].toUpperCase() + note.slice(1);
    const per = this.trace.calls.map(({ queries, keys }) => [queries, keys].map((x) => Math.ceil(x / SMALL_MAP_SIDE)));
    const [high, wide] = [0, 1].map((side) => Math.max(...per.map((one) => one[side])));
    if (high * wide === 1) return "A cell is one weight";
    const same = per.every((one) => one[0] === high && one[1] === wide);
    return `A cell is the largest weight of ${same ? "about" : "up to"} ${high} × ${wide} tokens`;
  }
}

const STATISTICS = {
  entropy: "entropy (nats)",
  confidence: "confidence",
  sink: "weight on the first",
  prompt: "weight on the prompt",
};

class HeadDetails {
  /** `go(cell, view)` opens the head in another view. @param {Context} context */
  constructor(context, go) {
    this.context = context;
    this.go = go;
    this.root = el("aside.aside", { "aria-label": "The chosen head" });
    this.said = "";
    this.bigCanvas = el("canvas.big", { role: "img" });
    this.scale = el("p.quietly.small");
    this.chosen = el("p.finding", { hidden: true }); // where the word looks that was chosen in Heads
    this.shown = null;
    /** @type {Tiles | null} */
    this.tiles = null;
    this.why = "";
    /** @type {Record<string, number>} */
    this.thresholds = {};
  }

  /** The chosen head, large: the tile of the map that holds all of it, drawn again and again until it is computed whole. */
  show(cell, { entry = 0 }) {
    this.shown = cell;
    this.close(); // another head
    const { source, trace } = this.context;
    const asked = { head: cell.head, entry, pool: "max" };
    this.tiles = new Tiles(source, callPath(trace, cell.call), cell.call, asked, () => this.paint());
    this.tiles.want([[this.tiles.top, 0, 0]]);
    this.chosen.hidden = true;
    this.describe(cell);
    context2d(this.bigCanvas).clearRect(0, 0, this.bigCanvas.width, this.bigCanvas.height); // it was another's
    this.scale.textContent = "Computing …";
  }

  /** The whole head as one tile; null until some of it is here. */
  get large() {
    const tile = this.tiles?.find(this.tiles.top, 0, 0);
    return tile?.data ? tile : null;
  }

  paint() {
    const { large } = this;
    if (!large) this.scale.textContent = this.tiles?.failed(this.tiles.top) ?? "";
    if (!large) return;
    const most = large.data.reduce((a, b) => Math.max(a, b), 0);
    copy(large, (x) => Math.sqrt(x / (most || 1)), this.context.palette, this.bigCanvas);
    const parts = ["queries down, keys across", `colours from 0 to ${number(most)}, square-root scale`];
    if (large.note) parts.push(large.note);
    if (large.computed < 1) parts.push(`${Math.floor(100 * large.computed)} % of it is computed, the rest is blank`);
    this.scale.textContent = parts.join("; ");
    this.showChosen(large);
  }

  /** The chosen word in this head, where the map is not pooled. */
  showChosen({ data, height, width }) {
    const { trace, state } = this.context;
    const at = chosenQuery(state.get());
    const { call } = this.shown;
    this.chosen.hidden = true;
    if (at === null || at >= height || height !== call.queries || width !== call.keys) return;
    this.chosen.hidden = false;
    const row = data.subarray(at * width, (at + 1) * width);
    const best = row.indexOf(Math.max(...row));
    const [own, other] = ["query", "key"].map((which) => sideOf(trace, call, which, "token").labels);
    this.chosen.textContent = `“${own[at]}” looks most at “${other[best]}” (${row[best].toFixed(2)}).`;
  }

  summary(heads) {
    this.close();
    this.tiles = null;
    this.shown = null;
    this.said = "";
    this.root.replaceChildren(
      el("h2", this.context.trace.model || "Model"),
      el("p", `${counted(this.context.trace.calls.length, "layer")}, ${counted(heads, "head")}.`),
      el(
        "p.quietly",
        "Choose a head to see it large, with its statistics and patterns. A double click opens it in Heads.",
      ),
    );
  }

  describe(cell) {
    this.bigCanvas.setAttribute("aria-label", `The weights of head ${cell.name}`);
    const known = Object.entries(STATISTICS).filter(([name]) => name in cell.values);
    const scores = Object.entries(cell.scores ?? {}).filter(([name]) => !(name in STATISTICS));
    const least = (name) => (this.thresholds[name] == null ? "" : number(this.thresholds[name]));
    const open = this.context.headViews.map(({ name, title }) =>
      el("button", { onclick: () => this.go(cell, name) }, title),
    );
    const statistics = known.map(([name, words]) =>
      row(words, [number(cell.values[name])], false, STATISTIC_MEANINGS[name]),
    );
    const patterns = scores.map(([name, score]) => {
      const chance = cell.p[name] == null ? "" : number(cell.p[name]);
      return row(name, [number(score), least(name), chance], cell.labels.includes(name), patternMeaning(name));
    });
    const findings = cell.badges.slice(0, 3).map(({ label }) => patternSentence(label, cell.scores?.[label]));
    this.said = `Head ${cell.name}${findings.length ? ` ${findings[0]}` : ", large"}`;
    const parts = [
      el("h2", `Head ${cell.name}`, ...cell.badges.map(badge)),
      ...findings.map((finding) => el("p.finding", `This head ${finding}.`)),
      this.chosen,
      el("p.quietly.small", cell.call.name),
      this.bigCanvas,
      this.scale,
      el("div.buttons", el("span.quietly", "Open in"), ...open),
    ];
    if (statistics.length) parts.push(figures(["statistic", "mean"], statistics));
    if (cell.from) parts.push(el("p.quietly.small", cell.from));
    if (patterns.length) parts.push(figures(["pattern", "score", "needs", "by chance"], patterns));
    if (this.why) parts.push(el("p.quietly", `No patterns: ${this.why}.`));
    this.root.replaceChildren(...parts);
  }

  close() {
    this.tiles?.close();
  }
}

/** Draw a tile in the colours of a palette. */
export function copy(tile, shade, palette, canvas) {
  [canvas.width, canvas.height] = [tile.width, tile.height];
  context2d(canvas).drawImage(colored(tile, shade, palette.bytes), 0, 0);
}

function row(first, cells, marked = false, meaning = "") {
  const name = el("th", { scope: "row", title: meaning }, first);
  return el("tr", { "data-marked": marked }, name, ...cells.map((cell) => el("td.number", cell)));
}

function figures(titles, rows) {
  const heads = titles.map((title, at) => el(at ? "th.number" : "th", { scope: "col" }, title));
  return table("table.figures", heads, rows);
}

// What heads do, in words: of each head its patterns, the rarest in the model first.

const COMMON = 0.25; // of all heads: a pattern of more than these tells little of any one of them

/** Gives every cell, which has `labels`, its `badges`: [{label, common}], the rarest first. */
function rank(cells) {
  const counts = new Map();
  for (const label of cells.flatMap(({ labels }) => labels)) counts.set(label, (counts.get(label) ?? 0) + 1);
  for (const cell of cells)
    cell.badges = [...cell.labels]
      .sort((a, b) => counts.get(a) - counts.get(b)) // stable: among equals the most decided stays first
      .map((label) => ({ label, common: counts.get(label) > COMMON * cells.length }));
}

export function badge({ label, common }) {
  return el(common ? "span.label.common" : "span.label", { title: patternMeaning(label) }, label);
}

const [SIZE, GAP, LINE] = [64, 8, 12]; // pixels
const ACROSS = 12; // maps in a row, where they are sorted
const LEAST = 6; // maps that have room beside one another: of a model of one head its names need it

/** `cells` in order, each with call, head, canvas, caption, score and badges; `rows`: [[call, its title], …] or null. */
function modelPicture(cells, rows, node) {
  const { ink, paper, font } = inks(node);
  const across = rows ? Math.max(...rows.map(([call]) => call.heads)) : ACROSS;
  const top = rows?.some(([, title]) => title) ? LINE + 4 : 0;
  const below = ({ score, badges }) => (score == null ? badges.map(({ label }) => label) : [number(score)]);
  const high = top + SIZE + LINE * (1 + Math.max(...cells.map((cell) => below(cell).length))) + GAP;
  const placed = cells.map((cell, at) => {
    const row = rows ? rows.findIndex(([call]) => call === cell.call) : Math.floor(at / across);
    return { cell, x: GAP + (rows ? cell.head : at % across) * (SIZE + GAP), y: GAP + row * high };
  });
  const [width, height] = [GAP + Math.max(across, LEAST) * (SIZE + GAP), Math.max(...placed.map(({ y }) => y)) + high];
  return onPaper(width, height, paper, (pen) => {
    Object.assign(pen, { font: `10px ${font}`, textBaseline: "top", fillStyle: ink, imageSmoothingEnabled: false });
    for (const { cell, x, y } of placed) {
      pen.drawImage(cell.canvas, x, y + top, SIZE, SIZE);
      [cell.caption, ...below(cell)].forEach((line, at) =>
        pen.fillText(shortened(pen, line, SIZE + GAP), x, y + top + SIZE + 3 + at * LINE),
      );
    }
    rows?.forEach(([, title], at) => pen.fillText(shortened(pen, title, width - GAP), GAP, GAP + at * high));
  });
}

/** A row for each head, in this order: its statistics, the scores of its patterns, and its labels. */
function modelTable(cells, order) {
  const statistics = Object.keys(cells[0].values);
  const patterns = Object.keys(cells.find((cell) => cell.scores)?.scores ?? {}).filter(
    (name) => !statistics.includes(name),
  );
  const rows = order.map((cell) => [
    cell.call.name,
    cell.head,
    ...statistics.map((name) => cell.values[name]),
    ...patterns.map((name) => cell.scores?.[name]),
    cell.labels.join("; "),
  ]);
  return [["layer", "head", ...statistics, ...patterns, "labels"], ...rows];
}
