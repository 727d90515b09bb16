// Map: the whole matrix of one head, from all of it down to single weights with their tokens; two heads in step.
import { fetchTrace } from "../data/sources.js";
import { levelAt, Tiles, wordSource } from "../data/tiles.js";
import { callOf, callPath, chosenQuery, fileParts, labelAt, layerTitle, sideOf } from "../data/tokens.js";
import { clipped, inks, makeBoard, onPaper, painter, place, write } from "../draw/canvas.js";
import { least } from "../draw/colors.js";
import { callChoice, choice, count, el, exact, headChoice, number, refill, tick } from "../draw/elements.js";
import { AnswerChoice } from "./answer_choice.js";
import { MapCamera, MapPanel } from "./one_head_map.js";

/** @type {View} */
export const map = {
  name: "map",
  title: "Map",
  hint: "Every weight of a head: zoom from all of it down to single tokens",
  needs: "trace",
  showsHead: true,
  mount: (root, context) => new MapView(root, context),
};

/** @typedef {{trace: Trace, call: Call, head: number, entry: number}} Target what a map shows */

class MapView {
  /** Traces looked at beside the first, by id and entry; null while one is on its way. @type {Map<string, Trace | null>} */
  others = new Map();

  constructor(root, context) {
    this.context = context;
    this.redraw = painter(() => this.draw());
    this.cross = null;
    this.panels = [];
    this.shown = [];
    this.controls = new MapControls(this);
    this.columns = [0, 1].map(() => el("div.panel-column.map-column", el("p.panel-title"), el("div.drawing")));
    this.camera = new MapCamera({
      first: () => this.panels[0],
      moved: () => this.redraw(),
      rested: (camera) => this.set(camera),
      pointed: (place) => this.point(place),
    });
    this.aside = new MapAside(
      () => this.look(),
      (x, y) => this.camera.move({ ...this.camera.now, x, y }),
    );
    this.answerChoice = new AnswerChoice(context, () => this.update());
    root.replaceChildren(
      el("div.controls.folds.map-controls", this.controls.root, this.answerChoice.root),
      el("div.split", ...this.columns, this.aside.root),
    );
    this.keys = mapKeys(this);
    this.update();
  }

  // What is looked at

  /** This view's part of the state. */
  get settings() {
    const given = this.context.state.get().map ?? {};
    const other = given.other && typeof given.other === "object" ? given.other : null;
    const _known = (value, names, usual) => (Object.hasOwn(names, value) ? value : usual);
    return {
      ...given,
      other,
      shade: this.shade,
    };
  }

  /** As everywhere else the root, where single weights can be seen; of longer texts most are too small for it. */
  get shade() {
    const { queries, keys } = callOf(this.context.trace, this.context.state.get());
    return Math.max(queries, keys) < 64 ? "root" : "log";
  }

  set(patch) {
    const next = { ...this.context.state.get().map, ...patch };
    this.context.state.set({ map: Object.fromEntries(Object.entries(next).filter(([, value]) => value != null)) });
  }

  /** What the first or the second map shows; null while a second trace is on its way. @returns {Target | null} */
  target(at) {
    const { context, settings } = this;
    const state = context.state.get();
    const given = at === 0 ? state : { ...state, ...settings.other };
    const own = at === 0 || !given.trace || given.trace === context.trace.id;
    const trace = own ? context.trace : this.others.get(`${given.trace}/${given.entry ?? 0}`);
    if (!trace) return null;
    const call = callOf(trace, given);
    const within = (x, most) => Math.min(Math.max(0, Math.trunc(x) || 0), most - 1);
    return { trace, call, head: within(given.head, call.heads), entry: within(given.entry, trace.batch ?? 1) };
  }

  /** The same of a map that is shown. */
  shownTarget(at) {
    return /** @type {Target} */ (this.target(at));
  }

  /** Fetch the second trace, where there is one that is not here yet. */
  async fetchOther() {
    const { source, state, trace, fail } = this.context;
    const { trace: id, entry = state.get().entry ?? 0 } = this.settings.other ?? {};
    const key = `${id}/${entry}`;
    if (!id || id === trace.id || this.others.has(key)) return;
    this.others.set(key, null);
    try {
      this.others.set(key, await fetchTrace(source, id, entry)); // it may have fewer texts
    } catch (error) {
      fail(error);
      this.set({ other: null });
    }
    this.update();
  }

  update() {
    if (this.closed) return;
    this.fetchOther();
    this.answerChoice.update(this.shownTarget(0).call);
    const second = Boolean(this.settings.other && this.target(1));
    this.columns[1].hidden = !second;
    for (const panel of this.panels.splice(second ? 2 : 1)) panel.close();
    this.shown.length = Math.min(this.shown.length, second ? 2 : 1);
    for (const at of second ? [0, 1] : [0]) this.show(at);
    this.camera.set(this.settings);
    this.controls.show();
    this.redraw();
  }

  show(at) {
    const { trace, call, head, entry } = this.shownTarget(at);
    const [title, stage] = /** @type {HTMLElement[]} */ ([...this.columns[at].children]);
    const name = `${layerTitle(trace, call)} · head ${head}`;
    title.title = call.name;
    title.textContent = trace === this.context.trace ? name : `${trace.title} · ${name}`;
    if (!this.panels[at]) {
      stage.replaceChildren();
      this.panels[at] = new MapPanel(stage, () => ({ ...this.look(), peak: this.look().peak(at) }));
      this.camera.listen(this.panels[at]);
    }
    const panel = this.panels[at];
    panel.board.node.setAttribute("aria-label", `Map of ${title.textContent}: arrow keys move, plus and minus zoom`);
    const words = this.byWords(call);
    const target = this.contributions(at) ? this.answerChoice.target : null;
    const key = JSON.stringify([trace.id, call.id, head, entry, words, target]);
    if (this.shown[at] === key) return;
    this.shown[at] = key;
    const [query, side] = ["query", "key"].map((which) => sideOf(trace, call, which, words ? "word" : "token"));
    const path = callPath(trace, call);
    const params = { head, pool: "max", ...(target ?? { entry }) };
    const root = target ? `${path}/contributions` : path;
    const { source } = this.context;
    const sides = { query, key: side };
    const between = { queries: query.labels.length, keys: side.labels.length };
    const own = words ? wordSource(source, root, params, call.keys, sides) : source;
    panel.show(new Tiles(own, root, words ? between : call, params, this.redraw), sides);
  }

  /** What the server said of the contributions of the call of a map; null where its weights are shown. */
  contributions(at) {
    const { trace, call } = this.shownTarget(at);
    return trace === this.context.trace ? this.answerChoice.ofCall(call) : null;
  }

  byWords(call) {
    return this.context.level === "word" && call.queries * call.keys <= this.context.about.limits.cells;
  }

  /** What the panels and the aside draw. */
  look() {
    const { shade } = this.settings;
    const { palette } = this.context;
    const camera = this.camera.now;
    const titles = this.panels.map((_, at) => this.columns[at].children[0].textContent);
    const coarse =
      this.context.level === "word" && !this.byWords(this.shownTarget(0).call)
        ? " Tokens: there are too many for words."
        : "";
    return {
      panels: this.panels,
      titles,
      camera,
      level: this.level(camera),
      cross: this.cross,
      chosen: this.chosen(),
      shade,
      palette,
      coarse,
      /** The largest contribution of the call of a map; 0 where its weights are shown. */
      peak: (at) => (this.target(at) && this.contributions(at)?.peak) || 0,
      answer: this.answerChoice.name,
    };
  }

  /** The row of the word that is chosen, by words or tokens as the map is. */
  chosen() {
    const position = chosenQuery(this.context.state.get());
    if (position === null) return null;
    const { trace, call } = this.shownTarget(0);
    const side = sideOf(trace, call, "query", this.byWords(call) ? "word" : "token");
    return labelAt(side, Math.min(position, call.queries - 1));
  }

  level(camera) {
    return Math.min(levelAt(camera.scale), this.panels[0].tiles.top);
  }

  draw() {
    for (const panel of this.panels) panel.board.ask();
    this.aside.draw();
    this.context.drew();
  }

  // What one does

  /** The cross goes to the cell at a place; nowhere where that is outside. */
  point(place) {
    const { queries, keys } = this.panels[0].call;
    const cell = 2 ** this.level(this.camera.now);
    const inside = place && place.row >= 0 && place.column >= 0 && place.row < queries && place.column < keys;
    const snap = (x) => Math.floor(x / cell) * cell;
    this.cross = inside ? { row: snap(place.row), column: snap(place.column) } : null;
    this.redraw();
  }

  /** A cell or a part of the window in a direction; the cross stays in the middle, and what it is on is said. */
  step(across, down, far) {
    const { scale, stretch } = this.camera.now;
    const { area } = this.panels[0];
    const pace = (span, cell) => (far ? span / 2 : scale >= 4 ? cell : span / 16);
    this.camera.by(across * pace(area.width, scale * stretch), down * pace(area.height, scale));
    this.point({ row: this.camera.now.y, column: this.camera.now.x });
    const reading = this.cross && this.panels[0].read(this.cross);
    if (!reading) return;
    const { query, key } = this.panels[0].sides;
    const [rows, columns] = reading.cell;
    const many = rows * columns > 1 ? `, largest of ${rows} by ${columns}` : "";
    const names = `query ${reading.row} ${query[reading.row]}, key ${reading.column} ${key[reading.column]}`;
    const value = this.contributions(0) ? number(reading.value) : exact(reading.value);
    this.context.announce(`${names}: ${value}${many}`);
  }

  /** Jump to the next key that holds these letters; Enter again goes on. */
  find(text) {
    const { key, query } = this.panels[0].sides;
    const places = key.flatMap((label, at) => (label.toLowerCase().includes(text.trim().toLowerCase()) ? [at] : []));
    if (!places.length) return this.context.announce(`“${text}” is not in this text`);
    const at = places.find((place) => place > (this.cross?.column ?? -1)) ?? places[0];
    const row = at < query.length ? at : 0; // the same word looking at itself
    this.camera.move({ x: at + 0.5, y: row + 0.5, scale: Math.max(this.camera.now.scale, 16) });
    this.point({ row, column: at });
    this.context.announce(`${places.indexOf(at) + 1} of ${places.length}: ${key[at]}, position ${at}`);
  }

  nextHead(by) {
    const { call, head } = this.shownTarget(0);
    this.context.state.set({ head: (head + by + call.heads) % call.heads });
  }

  nextCall(by) {
    const { calls } = this.context.trace;
    const at = calls.indexOf(this.shownTarget(0).call);
    this.context.state.set({ call: calls[(at + by + calls.length) % calls.length].id });
  }

  compare(on) {
    const { call, head } = this.shownTarget(0);
    this.set({ other: on ? { call: call.id, head: (head + 1) % call.heads } : null }); // of the same trace
  }

  // What leaves the page

  picture() {
    const sizes = this.panels.map((panel) => panel.board.size);
    const { ink, paper, font } = inks(this.controls.root);
    const [width, height] = [sizes.reduce((sum, size) => sum + size.width, 0), sizes[0].height + 44];
    const { titles } = this.look();
    return onPaper(width, height, paper, (pen) => {
      pen.save();
      pen.translate(0, 20);
      this.panels.forEach((panel, at) => {
        panel.picture(pen);
        write(pen, titles[at], 16, 0, { fillStyle: ink, font: `600 13px ${font}`, textAlign: "left" });
        pen.translate(sizes[at].width, 0);
      });
      pen.restore();
      const style = { fillStyle: ink, font: `12px ${font}`, textAlign: "left" };
      write(pen, this.aside.caption.textContent, 16, height - 10, style);
    });
  }

  sentence() {
    return this.aside.said;
  }

  legend() {
    const { shade } = this.settings;
    const peak = this.contributions(0)?.peak;
    const words = `contribution to ${this.answerChoice.name}`;
    if (peak) return { signed: true, from: `−${number(peak)}`, to: number(peak), words };
    const from = shade === "log" ? `≤ ${number(least(this.shownTarget(0).call.keys))}` : "0";
    const scale = { log: "logarithmic", root: "square-root" }[shade];
    return { from, to: "1", words: `weight, ${scale} scale` };
  }

  /** The cells in sight, of every map shown. */
  table() {
    const { level, titles } = this.look();
    const cell = 2 ** level;
    const inSight = (from, to, most) => {
      const start = Math.max(0, Math.floor(from / cell)) * cell;
      const count = Math.max(0, Math.ceil((Math.min(to, most) - start) / cell));
      return Array.from({ length: count }, (_, i) => start + i * cell);
    };
    const name = (tokens, i) => `${i} ${tokens[i]}`;
    return this.panels.flatMap((panel, at) => {
      const { call, sides } = panel;
      const [from, to] = panel.sight;
      const columns = inSight(from.column, to.column, call.keys);
      const rows = inSight(from.row, to.row, call.queries);
      return [
        [`${titles[at]}, ${cell === 1 ? "weights" : `largest of ${cell} × ${cell}`}`],
        ["", ...columns.map((column) => name(sides.key, column))],
        ...rows.map((row) => [
          name(sides.query, row),
          ...columns.map((column) => panel.read({ row, column })?.value ?? ""),
        ]),
      ];
    });
  }

  subject() {
    return this.panels.flatMap((_, at) => {
      const { trace, call, head } = this.shownTarget(at);
      return [trace === this.context.trace ? "" : trace.model, ...fileParts(trace, call, [head])];
    });
  }

  drawn() {
    const { camera, level, shade, cross, chosen } = this.look();
    return {
      camera,
      level,
      shade,
      cross,
      chosen,
      toward: this.contributions(0) ? this.answerChoice.answers : null,
      pending: this.panels.reduce((sum, panel) => sum + panel.tiles.pending, 0),
      readings: cross ? this.panels.map((panel) => panel.read(cross)) : [],
      /** The cell that covers a weight, and where that weight is on the canvas. */
      cell: (row, column, at = 0) =>
        this.panels[at] && {
          ...this.panels[at].read({ row, column }),
          pixel: this.panels[at].at(column + 0.5, row + 0.5),
        },
    };
  }

  destroy() {
    this.closed = true;
    this.redraw.cancel();
    this.camera.close();
    this.answerChoice.close();
    for (const panel of this.panels) panel.close();
    this.aside.close();
  }
}

class MapControls {
  /** `view` is the Map view. */
  constructor(view) {
    this.view = view;
    this.root = el("div.controls");
    this.finder = el("input.map-find", {
      type: "search",
      placeholder: "Find a word …",
      "aria-label": "Find a word",
      onkeydown: (event) => event.key === "Enter" && view.find(this.finder.value),
    });
  }

  show() {
    const { view } = this;
    const { other } = view.settings;
    const { call, head } = view.context.state.get();
    const stamp = JSON.stringify([other, call, head, view.panels.length]);
    refill(this.root, stamp, () => [
      ...this.choosers(0),
      el("button", { onclick: () => view.camera.showAll() }, "Show all"),
      this.finder,
      tick("Compare", Boolean(other), (on) => view.compare(on), "a second head or model, moved in step (c)"),
      ...(other ? [el("span.map-with", el("span.joining", "with"), ...this.choosers(1))] : []),
    ]);
  }

  /** Which layer and head the first or the second map shows; of the second also which trace. */
  choosers(at) {
    const { view } = this;
    const target = view.target(at);
    const set = (patch) =>
      at === 0 ? view.context.state.set(patch) : view.set({ other: { ...view.settings.other, ...patch } });
    const traces = view.context.about.traces.map((trace) => [trace.id, trace.title]);
    const which =
      at === 1 && traces.length > 1
        ? [
            choice("Trace", traces, view.settings.other.trace ?? view.context.trace.id, (id) =>
              set({ trace: id, call: null, head: 0 }),
            ),
          ]
        : [];
    if (!target) return which;
    return [
      ...which,
      callChoice(target.trace, target.call, (id) => set({ call: id })),
      headChoice(target.call.heads, target.head, (head) => set({ head })),
    ];
  }
}

/** @returns {KeyBinding[]} */
function mapKeys(view) {
  /** @type {[string, number, number][]} */
  const arrows = [
    ["ArrowLeft", -1, 0],
    ["ArrowRight", 1, 0],
    ["ArrowUp", 0, -1],
    ["ArrowDown", 0, 1],
  ];
  const moves = arrows.flatMap(([key, across, down], at) => [
    { key, shown: "arrows", text: at ? "" : "move, and read the middle", run: () => view.step(across, down, false) },
    {
      key,
      shift: true,
      shown: "arrows",
      text: at ? "" : "move half a window",
      run: () => view.step(across, down, true),
    },
  ]);
  return [
    ...moves,
    { key: "+", text: "zoom in", run: () => view.camera.zoom(1.5) },
    { key: "-", text: "zoom out", run: () => view.camera.zoom(1 / 1.5) },
    { key: "Home", text: "the whole head", run: () => view.camera.showAll() },
    { key: "[", text: "the head before", run: () => view.nextHead(-1) },
    { key: "]", text: "the next head", run: () => view.nextHead(1) },
    { key: ",", text: "the layer before", run: () => view.nextCall(-1) },
    { key: ".", text: "the next layer", run: () => view.nextCall(1) },
    { key: "c", text: "two heads in step", run: () => view.compare(!view.settings.other) },
  ];
}

const AROUND = 6; // tokens of context

/** `look()` is {panels, titles, camera, cross, shade, palette, level, coarse: why it is not by words}. */
class MapAside {
  /** Pixels of a weight in the overview. @type {number} */
  scale;

  constructor(look, jump) {
    this.look = look;
    this.reading = el("div.map-reading");
    this.caption = el("p.map-caption", { role: "status" });
    const overview = el("div.map-overview");
    const help = el(
      "p.quietly",
      "Drag or arrow keys move, wheel or + − zoom, Home shows all, a double click zooms in.",
    );
    this.root = el(
      "aside.aside.map-aside",
      { "aria-label": "Reading", tabIndex: 0 },
      this.reading,
      this.caption,
      overview,
      help,
    );
    this.said = "";
    this.overview = makeBoard(
      overview,
      { role: "img", "aria-label": "Where in the whole head this is" },
      (pen, width, height) => this.drawOverview(pen, width, height),
    );
    this.overview.node.addEventListener("pointerdown", (event) => {
      const { x, y } = place(event, this.overview.node);
      jump(x / this.scale, y / this.scale);
    });
  }

  draw() {
    this.write();
    this.overview.ask();
  }

  write() {
    const { panels, level, coarse, peak } = this.look();
    const what = peak(0) ? "contribution" : "weight";
    const side = count(2 ** level);
    const pending = panels.reduce((sum, panel) => sum + panel.tiles.pending, 0);
    const failed = panels.map((panel) => panel.tiles.failed(level)).find(Boolean);
    const cell = level === 0 ? `Each cell is one ${what}.` : `Each cell is the largest of ${side} × ${side} ${what}s.`;
    const share = Math.floor(100 * Math.min(...panels.map((panel) => panel.tiles.computed)));
    const walk =
      pending && level > 0 && share < 100 ? ` ${share} % of the head is computed; what is not is blank.` : "";
    const waiting = walk
      ? walk
      : pending
        ? ` Computing ${pending} tile${pending > 1 ? "s" : ""}; coarser until they are here.`
        : "";
    const text = cell + coarse + (failed ? ` Coarser where they are missing: ${failed}` : waiting);
    if (this.caption.textContent !== text) this.caption.textContent = text;
    this.reading.replaceChildren(...this.readingOf());
  }

  readingOf() {
    const { panels, titles, cross, peak, answer } = this.look();
    const found = cross ? panels.map((panel) => panel.read(cross)) : [];
    const first = found.find(Boolean);
    const { queries, keys } = panels[0].call;
    this.said = "";
    if (!first)
      return [
        el("h2", `${count(queries)} × ${count(keys)}`),
        el("p.quietly", "queries × keys. Point at the map to read it."),
      ];
    const [rows, columns] = first.cell;
    const noun = peak(0) ? "contribution" : "weight";
    const to = peak(0) ? ` to ${answer}` : "";
    const what =
      rows * columns === 1
        ? `the ${noun}${to} of`
        : `the largest of ${count(rows)} × ${count(columns)} ${noun}s${to} of`;
    const numbers = found.map((one, at) => one && (peak(at) ? number(one.value) : exact(one.value)));
    const values = numbers.flatMap((text, at) => [
      text && panels.length > 1 ? el("p.quietly.map-of", titles[at]) : "",
      text ? el("p.map-value", { title: titles[at] }, text) : "",
    ]);
    const { query, key } = panels[0].sides;
    this.said = `${query[first.row]} → ${key[first.column]}: ${numbers.filter(Boolean).join(" and ")}`;
    return [
      ...values,
      el("p.quietly", what),
      ...around("query", first.row, rows, query),
      ...around("key", first.column, columns, key),
    ];
  }

  drawOverview(pen, width, height) {
    const [panel] = this.look().panels;
    const { queries, keys } = panel.call;
    const { accent, line } = inks(this.root);
    const scale = Math.min(width / keys, height / queries);
    this.scale = scale;
    const tile = panel.tiles.find(panel.tiles.top, 0, 0);
    if (tile?.data) {
      const cell = 2 ** panel.tiles.top;
      clipped(pen, { x: 0, y: 0, width: keys * scale, height: queries * scale }, () => {
        pen.imageSmoothingEnabled = cell * scale < 1;
        pen.drawImage(panel.image(tile), 0, 0, tile.width * cell * scale, tile.height * cell * scale);
      });
    }
    pen.strokeStyle = line;
    pen.strokeRect(0.5, 0.5, keys * scale - 1, queries * scale - 1);
    const [from, to] = panel.sight;
    const [x0, y0] = [Math.max(0, from.column) * scale, Math.max(0, from.row) * scale];
    const [x1, y1] = [Math.min(keys, to.column) * scale, Math.min(queries, to.row) * scale];
    Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
    pen.strokeRect(x0 + 1, y0 + 1, Math.max(3, x1 - x0 - 2), Math.max(3, y1 - y0 - 2));
  }

  close() {
    this.overview.close();
  }
}

/** A place and the tokens around it. */
function around(name, from, many, tokens) {
  const range = many === 1 ? count(from) : `${count(from)}–${count(from + many - 1)}`;
  const first = Math.max(0, from - AROUND);
  const words = tokens.slice(first, from + 1 + AROUND).map((token, i) => {
    const here = first + i >= from && first + i < from + many;
    return el(here ? "mark" : "span", token);
  });
  return [el("h3", `${name} ${range}`), el("p.map-context", ...words.flatMap((word) => [word, " "]))];
}
