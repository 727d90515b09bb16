// Heads: lines between two columns of tokens, one colour per head.
import { callOf, fileParts, labelAt, sideOf } from "../data/tokens.js";
import { clipped, inks, onPaper } from "../draw/canvas.js";
import { bounded, callChoice, el, headButtons, number, refill, segments, tick } from "../draw/elements.js";
import { AnswerChoice } from "./answer_choice.js";
import { HeadsAside, hiddenNames } from "./heads_findings.js";
import {
  drawLines,
  LayerPanel,
  muted,
  mutedQueries,
  PAD,
  pinNames,
  pinsNamed,
  TokenPointer,
  toggled,
} from "./heads_links.js";

/** @typedef {import("./heads_links.js").Pin} Pin */

/** @type {View} */
export const heads = {
  name: "heads",
  title: "Heads",
  hint: "Who looks at whom: hover a token on either side, click to pin it",
  needs: "trace",
  asks: "weights",
  unheld:
    "The text is long, and this file holds maps of it rather than every weight: look at them in Map. For the lines between " +
    "its tokens write the file with a larger size, seen.to_html(path, size=1024), or run: regard view.",
  showsHead: true,
  mount: (root, context) => new Heads(root, context),
};

class Heads {
  /** @type {ReturnType<typeof sideOf>} */
  querySide;
  /** @type {ReturnType<typeof sideOf>} */
  keySide;
  /** @type {Level} */
  level;
  /** @type {string[]} */
  mutes;
  /** @type {Set<number>} */
  muted;
  /** @type {Set<number>} */
  mutedQueries = new Set();
  /** @type {Pin[]} */
  pins;
  /** @type {State} */
  state;

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.controls = headsControls(context.state, (name, on) => this.mute(name, on));
    this.pointer = new TokenPointer(this);
    this.aside = new HeadsAside(this);
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    this.controls.root.append(this.answerChoice.root);
    this.panel = new LayerPanel(
      this,
      () => this.scrolled(),
      () => {
        this.aside.list();
        context.drew();
      },
    );
    this.pointer.listen(this.panel);
    this.split = el("div.split", this.panel.root, this.aside.root);
    root.append(this.controls.root, this.split);
    this.update(context.state.get());
    const chosen = (this.pins[0]?.at ?? 0) - 5; // in sight, with some before it
    this.box.scrollTop = bounded(this.state.at, 0, this.querySide.labels.length, Math.max(0, chosen)) * this.row;
  }

  // State

  update(state) {
    this.state = state;
    const call = callOf(this.trace, state);
    this.answerChoice.update(call);
    if (call !== this.panel.call || this.level !== this.context.level) this.readSides(call);
    this.mutes = Array.isArray(state.mute) ? state.mute : [];
    this.muted = muted(this.keySide, this.mutes);
    this.mutedQueries = mutedQueries(this.querySide, this.keySide, this.mutes);
    this.pins = pinsNamed(state.pins, (pin) => this.sideOf(pin));
    this.all = state.lines === "all";
    const reach = this.keySide.labels.length - 1;
    this.shift = bounded(state.shift, -reach, reach, 0);
    this.panel.show(call);
    this.showControls();
    this.aside.update();
  }

  /** The tokens or words of both columns; what is pointed at stays. @param {Call} call */
  readSides(call) {
    this.level = this.context.level;
    const before = { query: this.querySide, key: this.keySide };
    this.querySide = sideOf(this.trace, call, "query", this.level);
    this.keySide = sideOf(this.trace, call, "key", this.level);
    this.pointer.follow((pin) => ({ ...pin, at: labelAt(this.sideOf(pin), before[pin.side].groups[pin.at][0]) }));
  }

  showControls() {
    const { controls, call, trace } = this;
    const menu = callChoice(trace, call, (id) => this.context.state.set({ call: id }));
    controls.showLayers(call.id, menu);
    controls.buttons.show(call.heads, this.active, this.context.palette);
    controls.lines.show(this.all ? "all" : "few");
    const special = new Set(this.keySide.labels.filter((_, at) => this.keySide.special[at]));
    controls.showSpecial([...special], this.mutes.includes("special"));
  }

  mute(name, on) {
    const rest = this.mutes.filter((one) => one !== name);
    const next = on ? [...rest, name] : rest;
    this.context.state.set({ mute: next.length ? next : null });
  }

  // What the aside, the pointer and keys ask

  get call() {
    return this.panel.call;
  }

  get rows() {
    return this.panel.rows;
  }

  get active() {
    return this.panel.active;
  }

  get box() {
    return this.panel.box;
  }

  /** Pixels of a token. */
  get row() {
    return this.panel.row;
  }

  /** @returns {KeyBinding[]} */
  get keys() {
    const set = (patch) => this.context.state.set(patch);
    return [
      { key: "ArrowDown", text: "next token", run: () => this.pointer.step(1) },
      { key: "ArrowUp", text: "previous token", run: () => this.pointer.step(-1) },
      { key: "ArrowLeft", text: "the queries’ column", run: () => this.pointer.cross("query") },
      { key: "ArrowRight", text: "the keys’ column", run: () => this.pointer.cross("key") },
      { key: "Enter", text: "pin the token", run: () => this.pointer.hover && this.toggle(this.pointer.hover) },
      {
        key: "Enter",
        shift: true,
        text: "pin one more token",
        run: () => this.pointer.hover && this.toggle(this.pointer.hover, true),
      },
      { key: "Escape", text: "unpin all", run: () => this.unpin() },
      { key: "]", text: "next layer", run: () => this.layer(1) },
      { key: "[", text: "previous layer", run: () => this.layer(-1) },
      { key: "l", text: "all lines, or what stands out", run: () => set({ lines: this.all ? null : "all" }) },
      { key: ".", text: "next head alone", run: () => this.isolate(1) },
      { key: ",", text: "previous head alone", run: () => this.isolate(-1) },
      { key: "a", text: "all heads", run: () => set({ heads: null }) },
      {
        key: "s",
        text: "hide special tokens",
        run: () => this.mute("special", !this.mutes.includes("special")),
      },
      { key: "ArrowDown", shift: true, text: "keys down", run: () => this.pointer.moveKeys(3) },
      { key: "ArrowUp", shift: true, text: "keys up", run: () => this.pointer.moveKeys(-3) },
    ];
  }

  paint() {
    this.panel.paint();
  }

  // Pins

  /** A pin alone, or with those that are there; the only one again unpins it. */
  toggle(pin, adding = false) {
    const only = this.pins.length === 1 && toggled(this.pins, pin).length === 0;
    this.keep(adding ? toggled(this.pins, pin) : only ? [] : [pin]);
  }

  keep(pins) {
    const names = pinNames(pins, (pin) => this.sideOf(pin));
    const word = pins.findLast(({ side }) => side === "query"); // Neuron and Map show the same one
    this.context.state.set({
      pins: names.length ? names : null,
      ...(word ? { query: this.querySide.groups[word.at][0] } : {}),
    });
  }

  sideOf({ side }) {
    return side === "query" ? this.querySide : this.keySide;
  }

  unpin() {
    this.pointer.point(null);
    this.context.state.set({ pins: null });
  }

  /** The labels whose links are shown; none means those of every query in view. */
  focus() {
    const { hover, dragged } = this.pointer;
    return hover && !dragged ? [...this.pins.filter((pin) => pin.side === hover.side), hover] : this.pins;
  }

  // Moving on

  scrolled() {
    const at = Math.round(this.box.scrollTop / this.row);
    if (at !== (this.state.at ?? 0)) this.context.state.set({ at: at || null });
    this.paint();
  }

  layer(by) {
    const at = this.trace.calls.indexOf(this.call) + by;
    if (this.trace.calls[at]) this.context.state.set({ call: this.trace.calls[at].id });
  }

  isolate(by) {
    const now = this.active.length === 1 ? this.active[0] : by > 0 ? -1 : 0;
    this.context.state.set({ heads: [(now + by + this.call.heads) % this.call.heads] });
  }

  /** Bring a label into view: a key is moved beside the queries that are looked at. */
  bring({ side, at }) {
    if (side === "key" && this.keySide.labels.length * this.row > this.box.clientHeight) {
      const middle = Math.round((this.box.scrollTop + this.box.clientHeight / 2) / this.row);
      this.context.state.set({ shift: at - middle || null });
    } else this.pointer.reveal({ side, at });
  }

  // Export and tests

  picture() {
    return headsPicture(this.panel);
  }

  /** What stands out, in one sentence. */
  sentence() {
    return this.pointer.read ?? this.aside.sentence;
  }

  legend() {
    if (!this.rows.signed) return headsLegend(this.panel);
    const peak = number(this.panel.scene().peak);
    return { signed: true, from: `−${peak}`, to: peak, words: `contribution to ${this.answerChoice.name}` };
  }

  subject() {
    return fileParts(this.trace, this.call, this.active);
  }

  table() {
    return [COLUMNS, ...linkRows(this.panel)];
  }

  drawn() {
    const scene = this.panel.shown(this.panel.scene());
    return {
      call: this.call.id,
      level: this.level,
      active: this.active,
      focus: scene.focus,
      links: scene.links,
      lines: scene.lines,
      mark: (kind, head, key) =>
        this.panel.marks.find((mark) => mark[kind] && mark.link.head === head && mark.link.key === key)?.[kind],
      rows: scene.rows,
      strongest: this.aside.strongest.best.map(({ call, ...rest }) => ({ call: call.id, ...rest })),
      row: this.row,
      toward: this.rows.signed ? this.answerChoice.answers : null,
    };
  }

  destroy() {
    this.aside.close();
    this.answerChoice.close();
    this.panel.close();
  }
}

/** `mute(name, on)` leaves "special" keys out. @param {StateStore} state */
function headsControls(state, mute) {
  const callBox = el("span");
  const buttons = headButtons((chosen) => state.set({ heads: chosen }));
  const lines = segments("Lines", { few: "What stands out", all: "All lines" }, "few", (which) =>
    state.set({ lines: which === "all" ? which : null }),
  );
  const specialName = el("span");
  const special = tick(specialName, false, (on) => mute("special", on), "Leave special tokens out (s)");
  /** Named by the special tokens of this text; hidden where it has none. */
  const showSpecial = (labels, on) => {
    special.hidden = !labels.length;
    specialName.textContent = `Hide ${labels.slice(0, 3).join(", ")}`;
    special.show(on);
  };
  const root = el("div.controls.folds", callBox, buttons, lines, special, buttons.every);
  const showLayers = (stamp, menu) => refill(callBox, stamp, () => [menu]);
  return { root, showLayers, buttons, lines, showSpecial };
}

const WHOLE_ROWS = 60; // tokens up to which a picture has all of them, whether or not they are in sight

/** All of a short text, and of a longer one what is in sight. */
function headsPicture(panel) {
  const rows = Math.max(panel.view.querySide.labels.length, panel.view.keySide.labels.length - panel.view.shift);
  const [whole, { clientWidth, clientHeight }] = [rows * panel.row + 2 * PAD, panel.box];
  const scene =
    rows <= WHOLE_ROWS
      ? { ...panel.scene(clientWidth, whole), top: -PAD }
      : panel.scene(clientWidth, Math.min(clientHeight, whole));
  return onPaper(scene.width, scene.height, inks(panel.box).paper, (ctx) => {
    const shown = panel.shown(scene);
    clipped(ctx, { x: 0, y: 0, width: scene.width, height: scene.height }, () => {
      drawLines(ctx, scene, shown.lines);
      panel.drawTokens(ctx, scene, shown);
    });
  });
}

/** The heads' colours, how strong lines and squares are, and what is hidden. @returns {Legend} */
function headsLegend(panel) {
  const { palette } = panel.context;
  const drawn = new Set((panel.last?.lines ?? []).map(({ head }) => head));
  const entries = [...drawn]
    .sort((a, b) => a - b)
    .map((head) => ({ label: `head ${head}`, color: palette.head(head) }));
  const note = panel.view.muted.size ? `${hiddenNames(panel)} hidden` : "";
  return { entries, from: "0", to: "1", words: "weight, root scale", note };
}

const COLUMNS = ["layer", "head", "query", "query token", "key", "key token", "drawn", "weight", "from any word here"];

/** The links that are drawn, and those of hidden tokens beside them, with all digits of their weights. */
function linkRows(panel) {
  const scene = panel.scene();
  const all = { ...scene, muted: new Set(), mutedQueries: new Set() };
  const hidden = ({ query, key }) => panel.view.muted.has(key) || panel.view.mutedQueries.has(query);
  const shown = panel.shown(scene).links;
  const also = panel.view.muted.size ? panel.shown(all).links.filter(hidden) : [];
  const keyOf = ({ head, query, key }) => `${head} ${query} ${key}`;
  const drawn = new Set(shown.map(keyOf));
  const links = [...shown, ...also.filter((link) => !drawn.has(keyOf(link)))];
  return links.map((link) => [
    panel.call.name,
    link.head,
    link.query,
    panel.view.querySide.labels[link.query],
    link.key,
    panel.view.keySide.labels[link.key],
    drawn.has(keyOf(link)) ? "" : "hidden",
    Number(link.weight.toPrecision(9)), // the shortest number that is this float32
    link.habit == null ? "" : Number(link.habit.toPrecision(6)),
  ]);
}
