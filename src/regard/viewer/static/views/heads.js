// Heads: lines between two columns of tokens, one colour per head; of one layer, or of two side by side.
import { callOf, fileParts, labelAt, layerTitle, sideOf } from "../data/tokens.js";
import { clipped, inks, onPaper, write } from "../draw/canvas.js";
import { bounded, callChoice, el, headButtons, number, refill, sinkTick, slider, tick } from "../draw/elements.js";
import { AnswerChoice } from "./answer_choice.js";
import { HeadsAside, hiddenNames } from "./heads_findings.js";
import {
  drawLines,
  LayerPanel,
  lineOpacity,
  lineWidth,
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
  tour: {
    title: "Who looks at whom",
    text: "A line leads from a word to a word it looks at, in the colour of a head. The page now chooses one word after another; click any word to choose it yourself.",
    act: chooseWords,
  },
  mount: (root, context) => new Heads(root, context),
};

class Heads {
  /** One for each layer that is shown: one or two. @type {LayerPanel[]} */
  panels = [];
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
    this.controls = headsControls(context.state, {
      mute: (name, on) => this.mute(name, on),
      compare: (on) => compareLayers(this, on),
      openMaps: () => openMaps(this),
    });
    this.pointer = new TokenPointer(this);
    this.aside = new HeadsAside(this);
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    this.controls.more.append(this.answerChoice.root);
    this.split = el("div.split", this.aside.answer.button, this.aside.root);
    root.append(this.controls.root, this.split);
    this.update(context.state.get());
    this.box.scrollTop = bounded(this.state.at, 0, this.querySide.labels.length) * this.row;
  }

  // State

  update(state) {
    this.state = state;
    const call = callOf(this.trace, state);
    this.answerChoice.update(call);
    if (call !== this.panels[0]?.call || this.level !== this.context.level) this.readSides(call);
    this.mutes = Array.isArray(state.mute) ? state.mute : [];
    this.muted = muted(this.keySide, this.mutes);
    this.mutedQueries = mutedQueries(this.querySide, this.keySide, this.mutes);
    this.share = bounded(state.mass, LEAST, 1, 1);
    this.pins = pinsNamed(state.pins, (pin) => this.sideOf(pin));
    const reach = this.keySide.labels.length - 1;
    this.shift = bounded(state.shift, -reach, reach, 0);
    this.showPanels([call, otherCall(this.trace, call, state)].filter((one) => one !== null));
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

  /** @param {Call[]} calls */
  showPanels(calls) {
    for (const panel of this.panels.splice(calls.length)) panel.close();
    calls.forEach((call, at) => {
      if (!this.panels[at]) {
        this.panels[at] = new LayerPanel(
          this,
          (panel) => this.scrolled(panel),
          () => this.aside.list(),
        );
        this.aside.answer.button.before(this.panels[at].root);
        this.pointer.listen(this.panels[at]);
      }
      this.panels[at].show(call, calls.length > 1);
    });
    this.split.classList.toggle("paired", calls.length > 1);
    if (calls.length > 1) this.panels[1].box.scrollTop = this.box.scrollTop;
  }

  showControls() {
    const { controls, call, trace } = this;
    const set = (patch) => this.context.state.set(patch);
    const other = this.panels[1]?.call ?? null;
    const others = comparable(trace, call);
    controls.showLayers(
      JSON.stringify([call.id, other?.id, others.length]),
      callChoice(trace, call, (id) => set({ call: id })),
      other && callChoice(trace, other, (id) => set({ other: id }), { calls: others, label: "with layer" }),
    );
    controls.comparison.hidden = !others.length;
    controls.comparison.show(other !== null);
    const most = this.panels.reduce((panel, next) => (next.call.heads > panel.call.heads ? next : panel));
    controls.buttons.show(most.call.heads, most.active, this.context.palette);
    controls.mass.show(this.share);
    controls.sink.show(this.mutes.includes("first"));
    const special = new Set(this.keySide.labels.filter((_, at) => this.keySide.special[at]));
    controls.showSpecial([...special], this.mutes.includes("special"));
  }

  mute(name, on) {
    const rest = this.mutes.filter((one) => one !== name);
    const next = on ? [...rest, name] : rest;
    this.context.state.set({ mute: next.length ? next : null });
  }

  // What the aside, the pointer and keys ask: of the first layer where there are two

  get call() {
    return this.panels[0].call;
  }

  get rows() {
    return this.panels[0].rows;
  }

  get active() {
    return this.panels[0].active;
  }

  get box() {
    return this.panels[0].box;
  }

  /** Pixels of a token. */
  get row() {
    return this.panels[0].row;
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
      { key: "c", text: "compare two layers", run: () => compareLayers(this, this.panels.length < 2) },
      { key: "}", text: "next second layer", run: () => stepOther(this, 1) },
      { key: "{", text: "previous second layer", run: () => stepOther(this, -1) },
      { key: ".", text: "next head alone", run: () => this.isolate(1) },
      { key: ",", text: "previous head alone", run: () => this.isolate(-1) },
      { key: "a", text: "all heads", run: () => set({ heads: null }) },
      {
        key: "m",
        text: "hide the first token",
        run: () => this.mute("first", !this.mutes.includes("first")),
      },
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
    for (const panel of this.panels) panel.paint();
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

  /** Panels are scrolled in step. @param {LayerPanel} panel */
  scrolled(panel) {
    const { scrollTop } = panel.box;
    for (const other of this.panels) if (other !== panel) other.box.scrollTop = scrollTop;
    const at = Math.round(scrollTop / this.row);
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
    return headsPicture(this.panels);
  }

  legend() {
    const [first] = this.panels;
    if (!first.rows.signed) return headsLegend(first);
    const peak = number(first.scene().peak);
    return { signed: true, from: `−${peak}`, to: peak, words: `contribution to ${this.answerChoice.name}` };
  }

  subject() {
    const [parts, other = []] = this.panels.map(({ call, active }) => fileParts(this.trace, call, active));
    return [parts[0], ...other.slice(0, 1), parts[1]];
  }

  table() {
    return [COLUMNS, ...this.panels.flatMap(linkRows)];
  }

  drawn() {
    const [scene, other = null] = this.panels.map((panel) => ({ call: panel.call.id, ...panel.shown(panel.scene()) }));
    return {
      call: scene.call,
      level: this.level,
      active: this.active,
      focus: scene.focus,
      links: scene.links,
      rows: scene.rows,
      strongest: this.aside.strongest.best.map(({ call, ...rest }) => ({ call: call.id, ...rest })),
      row: this.row,
      toward: this.rows.signed ? this.answerChoice.answers : null,
      other: other && { call: other.call, links: other.links, rows: other.rows },
    };
  }

  destroy() {
    this.aside.close();
    this.answerChoice.close();
    for (const panel of this.panels) panel.close();
  }
}

const LEAST = 0.05; // of the weight

/** `mute(name, on)` leaves "first" or "special" keys out; `compare(on)` shows a second layer; `openMaps()` two as maps.
 *
 * @param {StateStore} state
 */
function headsControls(state, { mute, compare, openMaps }) {
  const [callBox, otherBox] = [el("span"), el("span.other-layer", { hidden: true })];
  const comparison = tick("Compare layers", false, compare, "A second layer beside the first (c)");
  const buttons = headButtons((chosen) => state.set({ heads: chosen }));
  const mass = slider(
    "Strongest links",
    [LEAST, 1, 0.05],
    1,
    (x) => (x >= 1 ? "all" : `${Math.round(100 * x)} % of the weight`),
    (mass) => state.set({ mass: mass >= 1 ? null : mass }),
    "Of each query and head only the strongest links are drawn, until they hold this much of its weight",
  );
  const sink = sinkTick((on) => mute("first", on));
  const specialName = el("span");
  const special = tick(specialName, false, (on) => mute("special", on), "Leave special tokens out (s)");
  /** Named by the special tokens of this text; hidden where it has none. */
  const showSpecial = (labels, on) => {
    special.hidden = !labels.length;
    specialName.textContent = `Hide ${labels.slice(0, 3).join(", ")}`;
    special.show(on);
  };
  const title = "One head of two layers side by side, in the tab Map";
  const maps = el("button", { title, onclick: openMaps }, "Compare as maps");
  // On a phone these are folded away: the picture comes first.
  const more = el("div.more-controls", maps, buttons, mass, sink, special);
  const fold = el(
    "button.fold",
    {
      "aria-expanded": "false",
      onclick: () => fold.setAttribute("aria-expanded", String(root.classList.toggle("unfolded"))),
    },
    "Settings",
  );
  const root = el("div.controls", callBox, comparison, otherBox, fold, more, buttons.every);
  /** The menus of the layer and of a second one. */
  const showLayers = (stamp, first, second) => {
    refill(callBox, stamp, () => [first]);
    refill(otherBox, stamp, () => (second ? [second] : []));
    otherBox.hidden = !second;
  };
  return { root, more, comparison, showLayers, buttons, mass, sink, showSpecial };
}

/** The other layers between the same tokens. @param {Trace} trace @param {Call} call @returns {Call[]} */
export function comparable(trace, call) {
  const same = ["query_side", "key_side", "queries", "keys"];
  return trace.calls.filter((one) => one !== call && same.every((name) => one[name] === call[name]));
}

/** The layer that a link asks for beside `call`; null where it asks for none.
 *
 * Where it cannot stand there, it is the nearest one that can: the first layer may have become the same, or one between
 * other tokens.
 *
 * @param {Trace} trace @param {Call} call @param {State} state @returns {Call | null}
 */
export function otherCall(trace, call, { other }) {
  if (other == null) return null;
  const others = comparable(trace, call);
  const place = (one) => trace.calls.indexOf(one);
  const known = trace.calls.findIndex(({ id }) => id === String(other));
  const wanted = known < 0 ? place(call) + 1 : known;
  const distance = (one) => Math.abs(place(one) - wanted);
  return others.length ? others.reduce((best, one) => (distance(best) <= distance(one) ? best : one)) : null;
}

/** A second layer beside the first: the next one, or the one before the last; or none. `view` is the Heads view. */
export function compareLayers({ trace, call, context }, on) {
  const others = comparable(trace, call);
  const next = others.find((one) => trace.calls.indexOf(one) > trace.calls.indexOf(call)) ?? others.at(-1);
  context.state.set({ other: on && next ? next.id : null });
}

/** The next or previous layer as the second one. */
export function stepOther(view, by) {
  if (view.panels.length < 2) return compareLayers(view, true);
  const others = comparable(view.trace, view.call);
  const next = others[others.indexOf(view.panels[1].call) + by];
  if (next) view.context.state.set({ other: next.id });
}

/** The strongest of the heads that are on, in Map, beside the same head of the second layer, or of the next one. */
function openMaps({ trace: { calls }, call, panels, context }) {
  const next = panels[1]?.call ?? calls[(calls.indexOf(call) + 1) % calls.length];
  const { links } = panels[0].shown(panels[0].scene());
  const head = links.reduce((most, link) => (link.alpha > most.alpha ? link : most), { alpha: 0, head: 0 }).head;
  const other = { call: next.id, head: Math.min(head, next.heads - 1) };
  context.state.set({ view: "map", call: call.id, head, map: { other } });
}

const TITLE = 24; // pixels above each of two layers, for its name

const WHOLE_ROWS = 60; // tokens up to which a picture has all of them, whether or not they are in sight

/** Every panel, side by side: all of a short text, and of a longer one what is in sight. */
function headsPicture(panels) {
  const scenes = panels.map((panel) => {
    const rows = Math.max(panel.view.querySide.labels.length, panel.view.keySide.labels.length - panel.view.shift);
    const [whole, { clientWidth, clientHeight }] = [rows * panel.row + 2 * PAD, panel.box];
    if (rows <= WHOLE_ROWS) return { ...panel.scene(clientWidth, whole), top: -PAD };
    return panel.scene(clientWidth, Math.min(clientHeight, whole));
  });
  const { ink, paper, font } = inks(panels[0].box);
  const top = panels.length > 1 ? TITLE : 0;
  const width = scenes.reduce((sum, scene) => sum + scene.width, 0);
  const height = top + Math.max(...scenes.map((scene) => scene.height));
  return onPaper(width, height, paper, (ctx) => {
    ctx.save();
    ctx.translate(0, top);
    panels.forEach((panel, at) => {
      const scene = scenes[at];
      const shown = panel.shown(scene);
      clipped(ctx, { x: 0, y: 0, width: scene.width, height: scene.height }, () => {
        drawLines(ctx, scene, shown.links);
        panel.drawTokens(ctx, scene, shown);
      });
      const style = { fillStyle: ink, font: `600 14px ${font}`, textAlign: "center", textBaseline: "alphabetic" };
      if (top) write(ctx, layerTitle(panel.trace, panel.call), (scene.left + scene.right) / 2, -TITLE / 3, style);
      ctx.translate(scene.width, 0);
    });
    ctx.restore();
  });
}

/** The heads' colours, how strong lines and squares are, and what is hidden. @returns {Legend} */
function headsLegend(panel) {
  const { palette } = panel.context;
  const chosen = panel.view.focus().length > 0;
  const entries = panel.active.map((head) => ({ label: `head ${head}`, color: palette.head(head) }));
  const strokes = [0.05, 0.2, 0.5, 1].map((weight) => ({
    label: String(weight),
    width: lineWidth(weight),
    opacity: lineOpacity({ theme: panel.context.theme, chosen: true }, weight),
  }));
  const note = panel.view.muted.size
    ? `Lines from and to ${hiddenNames(panel)} are hidden; the others are the weights.`
    : "";
  if (!chosen) return { entries, note: note || "The stronger a line, the larger the weight." };
  return { entries, strokes, from: "0", to: "1", words: "weight of each head (squares), square-root scale", note };
}

const COLUMNS = ["layer", "head", "query", "query token", "key", "key token", "drawn", "weight"];

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
  ]);
}

const CHOSEN = 4; // words

/** Some words, one after another. @param {TourStage} stage */
async function chooseWords({ state, trace, pause }) {
  const call = callOf(trace, state.get());
  const { labels, special } = sideOf(trace, call, "query", "token");
  const words = labels.flatMap((label, at) => (special[at] || !/\p{L}{2}/u.test(label) ? [] : [`q${at}`]));
  state.set({ level: null });
  for (let n = 0; n < CHOSEN; n++) {
    const word = words[Math.floor(((n + 1) * words.length) / (CHOSEN + 1))];
    if (word) state.set({ pins: [word] });
    await pause(1100);
  }
}
