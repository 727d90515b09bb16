// Map: the whole matrix of one head, from all of it down to single weights with their tokens; two heads in step.

import { callPath, fileParts, isNumbered, ownName } from "../../data/calls.js";
import { levelAt, Tiles } from "../../data/tiles.js";
import { chosenQuery, labelAt, sideOf } from "../../data/tokens.js";
import { WordTiles } from "../../data/word_level_tiles.js";
import { least, SHADES } from "../../draw/color_scale.js";
import { el } from "../../draw/dom.js";
import { exact, number } from "../../draw/numbers.js";
import { AnswerChoice } from "../contributions/answer_choice.js";
import { MapCamera } from "./map_camera.js";
import { MapControls } from "./map_controls.js";
import { mapPicture, mapTable } from "./map_export.js";
import { mapKeys } from "./map_keys.js";
import { MapPanel } from "./map_panel.js";
import { MapSearch } from "./map_search.js";
import { MapAside, POOLS } from "./map_sidebar.js";
import { MapTargets } from "./map_targets.js";
import { MaskReader } from "./mask_reader.js";

/** @type {View} */
export const map = {
  name: "map",
  title: "Map",
  hint: "Every weight of a head: zoom from all of it down to single tokens",
  needs: "trace",
  showsHead: true,
  tour: {
    title: "Two layers side by side",
    text: "A square is one weight: the darker, the larger. Compare sets a second layer beside the first, and the page now goes through the layers. Zoom with the wheel, + and −.",
    act: compareLayers,
  },
  mount: (root, context) => new MapView(root, context),
};

/** What the tour does here: later layers beside the first. @param {TourStage} stage */
async function compareLayers({ state, trace: { calls }, pause }) {
  state.set({ call: calls[0].id, head: 0, map: {} });
  for (const share of [0.5, 1]) {
    await pause(1300);
    const { id } = calls[Math.floor(share * (calls.length - 1))];
    state.set({ map: { other: { call: id, head: 0 } } });
  }
}

class MapView {
  constructor(root, context) {
    this.context = context;
    this.cross = null;
    this.panels = [];
    this.shown = [];
    this.targets = new MapTargets(this);
    this.masks = new MaskReader(context.source, () => this.redraw());
    this.search = new MapSearch(this);
    this.controls = new MapControls(this);
    this.columns = [0, 1].map(() => el("div.panel-column.map-column", {}, el("p.panel-title"), el("div.drawing")));
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
      el("div.controls.map-controls", {}, this.controls.root, this.answerChoice.root),
      el("div.split", {}, ...this.columns, this.aside.answer.button, this.aside.root),
    );
    this.keys = mapKeys(this);
    this.update();
  }

  // What is looked at

  /** This view's part of the state. */
  get settings() {
    const given = this.context.state.get().map ?? {};
    const other = given.other && typeof given.other === "object" ? given.other : null;
    const known = (value, names, usual) => (Object.hasOwn(names, value) ? value : usual);
    return { ...given, other, pool: known(given.pool, POOLS, "max"), shade: known(given.shade, SHADES, "log") };
  }

  set(patch) {
    const next = { ...this.context.state.get().map, ...patch };
    this.context.state.set({ map: Object.fromEntries(Object.entries(next).filter(([, value]) => value != null)) });
  }

  /** What the first or the second map shows; null while a second trace is on its way. */
  target(at) {
    return this.targets.of(at);
  }

  /** The same of a map that is shown. */
  shownTarget(at) {
    return /** @type {import("./map_targets.js").Target} */ (this.targets.of(at));
  }

  update() {
    if (this.closed) return;
    this.targets.fetchOther();
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
    const own = `${isNumbered(trace) ? `Layer ${call.layer}` : ownName(trace, call)} · head ${head}`;
    title.title = call.name;
    title.textContent = trace === this.context.trace ? own : `${trace.title} · ${own}`;
    if (!this.panels[at]) {
      stage.replaceChildren();
      this.panels[at] = new MapPanel(stage, () => ({ ...this.look(), peak: this.look().peak(at) }));
      this.camera.listen(this.panels[at]);
    }
    const panel = this.panels[at];
    panel.board.node.setAttribute("aria-label", `Map of ${title.textContent}: arrow keys move, plus and minus zoom`);
    const { pool } = this.settings;
    const words = this.byWords(call);
    const target = this.contributions(at) ? this.answerChoice.target : null;
    const key = JSON.stringify([trace.id, call.id, head, entry, pool, words, target]);
    if (this.shown[at] === key) return;
    this.shown[at] = key;
    const [query, side] = ["query", "key"].map((which) => sideOf(trace, call, which, words ? "word" : "token"));
    const path = callPath(trace, call);
    const asked = target
      ? [this.context.source, `${path}/contributions`, call, { head, pool, ...target }]
      : [this.context.source, path, call, { head, entry, pool }];
    const redraw = () => this.redraw();
    panel.show(words ? new WordTiles(...asked, { query, key: side }, redraw) : new Tiles(...asked, redraw), {
      query,
      key: side,
    });
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
    const { pool, shade } = this.settings;
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
      pool,
      shade,
      palette,
      coarse,
      /** The largest contribution of the call of a map; 0 where its weights are shown. */
      peak: (at) => (this.target(at) && this.contributions(at)?.peak) || 0,
      answer: this.answerChoice.name,
      masked: (at, reading) => this.masks.masked(this.shownTarget(at), reading),
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

  redraw() {
    if (this.drawing || this.closed) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      if (this.closed) return;
      for (const panel of this.panels) panel.board.ask();
      this.aside.draw();
    });
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
    const many = rows * columns > 1 ? `, ${POOLS[this.settings.pool]} of ${rows} by ${columns}` : "";
    const names = `query ${reading.row} ${query[reading.row]}, key ${reading.column} ${key[reading.column]}`;
    const value = this.contributions(0) ? number(reading.value) : exact(reading.value);
    this.context.announce(`${names}: ${value}${many}`);
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
    return mapPicture(this);
  }

  legend() {
    const { shade } = this.settings;
    const peak = this.contributions(0)?.peak;
    if (peak)
      return {
        signed: true,
        from: `−${number(peak)}`,
        to: number(peak),
        words: `contribution to ${this.answerChoice.name}`,
      };
    const from = shade === "log" ? `≤ ${number(least(this.shownTarget(0).call.keys))}` : "0";
    return {
      from,
      to: "1",
      words: `weight, ${{ log: "logarithmic", root: "square-root", linear: "linear" }[shade]} scale`,
    };
  }

  table() {
    return mapTable(this);
  }

  subject() {
    return this.panels.flatMap((_, at) => {
      const { trace, call, head } = this.shownTarget(at);
      return [trace === this.context.trace ? "" : trace.model, ...fileParts(trace, call, [head])];
    });
  }

  drawn() {
    const { camera, level, pool, shade, cross, chosen } = this.look();
    return {
      camera,
      level,
      pool,
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
    cancelAnimationFrame(this.drawing);
    this.camera.close();
    this.answerChoice.close();
    for (const panel of this.panels) panel.close();
    this.aside.close();
  }
}
