// Heads: lines between two columns of tokens, one colour per head.

import { callOf, fileParts, layerTitle } from "../../data/calls.js";
import { Links } from "../../data/links.js";
import { labelAt, sideOf } from "../../data/tokens.js";
import { Rows } from "../../data/weight_rows.js";
import { callChoice } from "../../draw/call_choice.js";
import { fit, inks } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { bounded, number } from "../../draw/numbers.js";
import { scrollingCanvas } from "../../draw/scrolling_canvas.js";
import { AnswerChoice } from "../contributions/answer_choice.js";
import { contributionLegend, contributionSummary } from "./heads_contributions.js";
import { headsControls, headsKeys, LEAST, showPartChoice } from "./heads_controls.js";
import { headsLegend, headsPicture, headsTable } from "./heads_export.js";
import { pinNames, pinsNamed, toggled, unique } from "./heads_pins.js";
import { legend, said, summary } from "./heads_sidebar.js";
import { chooseWords } from "./heads_tour.js";
import {
  drawLines,
  drawTokens,
  linksFrom,
  linksTo,
  muted,
  mutedQueries,
  PAD,
  rowHeight,
  visible,
} from "./link_lines.js";
import { StrongestHeads } from "./strongest_heads.js";
import { TokenPointer } from "./token_pointer.js";
import { WhatIfPanel } from "./what_if_panel.js";

/** @typedef {import("./heads_pins.js").Pin} Pin */

const NARROW = 520; // pixels: a phone

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
  /** @type {Call} */
  call;
  /** @type {Rows} */
  rows;
  /** @type {Links | null} */
  links;
  /** @type {ReturnType<typeof sideOf>} */
  querySide;
  /** @type {ReturnType<typeof sideOf>} */
  keySide;
  /** @type {Level} */
  level;
  /** @type {number[]} */
  active;
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

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.ending = new AbortController();
    const { state } = this.context;
    this.controls = headsControls(
      state,
      (name, on) => this.mute(name, on),
      () => this.compare(),
    );
    this.scroll = scrollingCanvas({
      label: "Tokens and the links between them: arrow keys choose a token, Enter keeps it",
      layers: 2,
      draw: () => this.draw(),
      scrolled: () => this.scrolled(),
    });
    this.lines = this.scroll.canvases[0];
    this.over = this.scroll.canvases[1];
    this.box = this.scroll.box;
    this.pane = this.scroll.pane;
    this.paint = this.scroll.paint;
    this.words = el("div");
    this.strongest = new StrongestHeads(this);
    this.whatIf = new WhatIfPanel(this);
    this.aside = el(
      "aside.aside",
      { "aria-label": "What the chosen token looks at" },
      this.words,
      this.strongest.root,
      this.whatIf.root,
    );
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    this.controls.more.append(this.answerChoice.root);
    this.answer = el("button.answer", {
      type: "button",
      hidden: true,
      onclick: () => this.aside.scrollIntoView({ block: "start" }),
    });
    root.append(this.controls.root, el("div.split", {}, this.box, this.answer, this.aside));
    this.pointer = new TokenPointer(this);
    this.patterns = null;
    this.update(context.state.get());
    this.findPatterns();
    this.box.scrollTop = bounded(this.state.at, 0, this.querySide.labels.length) * this.row;
  }

  // State

  update(state) {
    this.state = state;
    const call = callOf(this.trace, state);
    this.answerChoice.update(call);
    const key = this.answerChoice.ofCall(call) ? this.answerChoice.key : "";
    if (call !== this.call || key !== this.rowsKey) {
      this.rows?.close();
      this.call = call;
      this.rowsKey = key;
      const target = key ? this.answerChoice.target : null;
      this.rows = new Rows(this.context, call, state.entry ?? 0, () => this.paint(), target);
      this.links = null;
      this.controls.callBox.replaceChildren(callChoice(this.trace, call, (id) => this.context.state.set({ call: id })));
    }
    if (!this.links || this.level !== this.context.level) {
      this.level = this.context.level;
      const before = { query: this.querySide, key: this.keySide };
      this.querySide = sideOf(this.trace, call, "query", this.level);
      this.keySide = sideOf(this.trace, call, "key", this.level);
      this.pointer.follow((pin) => ({ ...pin, at: labelAt(this.sideOf(pin), before[pin.side].groups[pin.at][0]) }));
      this.links = new Links(this.rows, this.querySide, this.keySide);
      this.pairs = showPartChoice(this.controls.partBox, this);
    }
    const all = Array.from({ length: call.heads }, (_, i) => i);
    this.active = Array.isArray(state.heads) ? all.filter((head) => state.heads.includes(head)) : all;
    this.mutes = Array.isArray(state.mute) ? state.mute : [];
    this.colors = all.map((head) => this.context.palette.head(head));
    this.controls.buttons.show(call.heads, this.active, this.context.palette);
    this.share = bounded(state.mass, LEAST, 1, 1);
    this.controls.mass.show(this.share);
    this.controls.sink.show(this.mutes.includes("first"));
    this.controls.special.show(this.mutes.includes("special"));
    this.muted = muted(this.keySide, this.mutes);
    this.mutedQueries = mutedQueries(this.querySide, this.keySide, this.mutes);
    this.pins = pinsNamed(state.pins, (pin) => this.sideOf(pin));
    const reach = this.keySide.labels.length - 1;
    this.shift = bounded(state.shift, -reach, reach, 0);
    this.stretch();
    this.listed = null;
    this.strongest.show();
    this.whatIf.show();
    this.paint();
  }

  /** Pixels of a token. */
  get row() {
    return rowHeight(this.box.clientHeight, Math.max(this.querySide.labels.length, this.keySide.labels.length));
  }

  /** What is scrolled is as high as the longer column. */
  stretch() {
    const most = Math.max(this.querySide.labels.length, this.keySide.labels.length - this.shift);
    const height = `${most * this.row + 2 * PAD}px`;
    if (this.scroll.spacer.style.height !== height) this.scroll.spacer.style.height = height;
  }

  mute(name, on) {
    const rest = this.mutes.filter((one) => one !== name);
    const next = on ? [...rest, name] : rest;
    this.context.state.set({ mute: next.length ? next : null });
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

  /** The strongest of the heads that are on, in Map, beside the same head of the next layer. */
  compare() {
    const { calls } = this.trace;
    const next = calls[(calls.indexOf(this.call) + 1) % calls.length];
    const { links } = this.shown(this.scene(this.box.clientWidth, this.box.clientHeight));
    const head = links.reduce((most, link) => (link.alpha > most.alpha ? link : most), { alpha: 0, head: 0 }).head;
    const other = { call: next.id, head: Math.min(head, next.heads - 1) };
    this.context.state.set({ view: "map", call: this.call.id, head, map: { other } });
  }

  isolate(by) {
    const now = this.active.length === 1 ? this.active[0] : by > 0 ? -1 : 0;
    this.context.state.set({ heads: [(now + by + this.call.heads) % this.call.heads] });
  }

  get keys() {
    return headsKeys(this);
  }

  // Drawing

  columns(width = this.box.clientWidth) {
    if (width < NARROW) return { left: width * 0.24, right: width * 0.62, width }; // room for the weights of each head
    const column = Math.max(90, Math.min(280, width * 0.28));
    return { left: column, right: width - column, width };
  }

  /** Everything `headlines` needs to know of the moment. */
  scene(width, height) {
    return {
      ...this.columns(width),
      height,
      top: this.box.scrollTop - PAD,
      row: this.row,
      shift: this.shift,
      active: this.active,
      colors: this.colors,
      querySide: this.querySide,
      keySide: this.keySide,
      links: this.links,
      muted: this.muted,
      mutedQueries: this.mutedQueries,
      mass: this.share,
      part: this.pairs.includes(this.state.part) ? this.state.part : null,
      peak: this.rows.signed ? this.answerChoice.ofCall(this.call)?.peak || 1 : 0,
      opacities: Array.from({ length: this.call.heads }, (_, head) => this.context.palette.headOpacity(head)),
      ramp: this.context.palette.ramp,
      waiting: false, // whether weights are on their way; set while links are looked up
      signs: [this.context.palette.signed(-0.7), this.context.palette.signed(0.7)],
      theme: this.context.theme,
      chosen: this.focus().length > 0,
    };
  }

  /** The labels whose links are shown; none means those of every query in view. */
  focus() {
    const { hover, dragged } = this.pointer;
    return hover && !dragged ? [...this.pins.filter((pin) => pin.side === hover.side), hover] : this.pins;
  }

  shown(scene) {
    const focus = unique(this.focus());
    const queries = visible(scene).filter((query) => !scene.mutedQueries.has(query));
    const links = focus.length
      ? focus.flatMap(({ side, at }) => (side === "query" ? linksFrom(scene, at) : linksTo(scene, at)))
      : queries.flatMap((query) => linksFrom(scene, query, false));
    return { focus, links, waiting: scene.waiting };
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    this.stretch();
    const scene = this.scene(width, height);
    const shown = this.shown(scene);
    const base = !shown.focus.length;
    this.lines.hidden = !base;
    const ctx = fit(this.over, width, height);
    ctx.clearRect(0, 0, width, height);
    if (base) {
      const under = fit(this.lines, width, height);
      under.clearRect(0, 0, width, height);
      drawLines(under, scene, shown.links);
    } else drawLines(ctx, scene, shown.links);
    drawTokens(ctx, scene, shown.focus, shown.links, this.pins, this.pointer.hover, inks(this.box));
    this.list(shown);
  }

  // Words beside it

  /** What the heads do, by the server's definitions: said in words where no token is chosen. */
  async findPatterns() {
    const path = `/api/traces/${encodeURIComponent(this.trace.id)}/patterns`;
    try {
      const { heads: found } = await this.context.source.get(
        path,
        { entry: this.state.entry ?? 0 },
        this.ending.signal,
      );
      this.patterns = found;
      this.listed = null;
      this.paint();
    } catch {
      // A file may hold none, and a long text takes too long: the page then says nothing about patterns.
    }
  }

  list({ focus, links, waiting }) {
    const { pins, mutes, active, level, rowsKey } = this;
    const key = JSON.stringify([focus, pins, mutes, links.length, waiting, active, level, this.call.id, rowsKey]);
    if (key === this.listed) return;
    this.listed = key;
    if (waiting && !links.length) {
      this.words.replaceChildren(
        el(
          "p.quietly",
          { role: "status" },
          `Reading ${layerTitle(this.trace, this.call).replace(/^Layer/, "layer")} …`,
        ),
      );
      return;
    }
    const [summarize, explain] = this.rows.signed ? [contributionSummary, contributionLegend] : [summary, legend];
    const parts = focus.length
      ? summarize(this, focus, links, (found) => this.bring(found))
      : explain(this, visible(this.scene(this.box.clientWidth, this.box.clientHeight)), links);
    this.words.replaceChildren(...parts);
    this.showAnswer(focus);
    const { hover } = this.pointer;
    if (hover) this.context.announce(said(this, hover, links));
  }

  /** Where the words are below the picture and out of sight, one line of them lies over its lower edge. */
  showAnswer(focus) {
    const [first] = focus.length ? this.words.querySelectorAll(".finding, .barrow") : [];
    this.answer.hidden = !first;
    if (!first) return;
    const [word, value] = [first.querySelector(".barlabel")?.firstChild, first.querySelector(".value")];
    this.answer.textContent = `↓ ${word && value ? `${word.textContent}: ${value.textContent}` : first.textContent}`;
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
    return headsPicture(this);
  }

  legend() {
    if (this.rows.signed) {
      const peak = number(this.scene(0, 0).peak);
      return { signed: true, from: `−${peak}`, to: peak, words: `contribution to ${this.answerChoice.name}` };
    }
    return headsLegend(this);
  }

  subject() {
    return fileParts(this.trace, this.call, this.active);
  }

  table() {
    return headsTable(this);
  }

  drawn() {
    const scene = this.scene(this.box.clientWidth, this.box.clientHeight);
    const shown = this.shown(scene);
    return {
      call: this.call.id,
      level: this.level,
      active: this.active,
      focus: shown.focus,
      links: shown.links,
      rows: visible(scene),
      strongest: this.strongest.best.map(({ call, ...rest }) => ({ call: call.id, ...rest })),
      row: scene.row,
      toward: this.rows.signed ? this.answerChoice.answers : null,
    };
  }

  destroy() {
    this.ending.abort();
    this.strongest.close();
    this.whatIf.close();
    this.answerChoice.close();
    this.scroll.close();
    this.rows.close();
  }
}
