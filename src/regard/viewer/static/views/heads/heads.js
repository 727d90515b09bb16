// Heads: lines between two columns of tokens, one colour per head; of one layer, or of two side by side.

import { callOf, fileParts } from "../../data/calls.js";
import { labelAt, sideOf } from "../../data/tokens.js";
import { callChoice } from "../../draw/call_choice.js";
import { el } from "../../draw/dom.js";
import { bounded, number } from "../../draw/numbers.js";
import { AnswerChoice } from "../contributions/answer_choice.js";
import { HeadsAside } from "./heads_aside.js";
import { headsControls, headsKeys, LEAST, showPartChoice } from "./heads_controls.js";
import { headsLegend, headsPicture, headsTable } from "./heads_export.js";
import { pinNames, pinsNamed, toggled } from "./heads_pins.js";
import { chooseWords } from "./heads_tour.js";
import { comparable, compareLayers, openMaps, otherCall } from "./layer_comparison.js";
import { LayerPanel } from "./layer_panel.js";
import { muted, mutedQueries } from "./link_lines.js";
import { TokenPointer } from "./token_pointer.js";

/** @typedef {import("./heads_pins.js").Pin} Pin */

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
  /** @type {string[]} */
  pairs;
  /** @type {State} */
  state;
  /** What the heads of all layers do; null until the server has said it. @type {any[] | null} */
  patterns = null;

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.ending = new AbortController();
    this.controls = headsControls(context.state, {
      mute: (name, on) => this.mute(name, on),
      compare: (on) => compareLayers(this, on),
      openMaps: () => openMaps(this),
    });
    this.pointer = new TokenPointer(this);
    this.aside = new HeadsAside(this);
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    this.controls.more.append(this.answerChoice.root);
    this.split = el("div.split", {}, this.aside.answer.button, this.aside.root);
    root.append(this.controls.root, this.split);
    this.update(context.state.get());
    this.aside.findPatterns();
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
    this.pairs = showPartChoice(this.controls.partBox, this);
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

  get keys() {
    return headsKeys(this);
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
    return headsTable(this.panels, this.ending.signal);
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
    this.ending.abort();
    this.aside.close();
    this.answerChoice.close();
    for (const panel of this.panels) panel.close();
  }
}
