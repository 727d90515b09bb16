// Heads: lines between two columns of tokens, one colour per head.

import { callOf, fileParts } from "../../data/calls.js";
import { Links } from "../../data/links.js";
import { labelAt, sideOf } from "../../data/tokens.js";
import { Rows } from "../../data/weight_rows.js";
import { callChoice } from "../../draw/call_choice.js";
import { fit, inks, painter } from "../../draw/canvas.js";
import { choice, el, slider, tick } from "../../draw/dom.js";
import { headButtons } from "../../draw/head_buttons.js";
import { bounded } from "../../shell/url_state.js";
import { legend, said, summary } from "./heads_sidebar.js";
import { drawLines, drawTokens, linksFrom, linksTo, muted, ROW, visible } from "./link_lines.js";

export const heads = {
  name: "heads",
  title: "Heads",
  hint: "Who looks at whom: hover a token on either side, click to pin it",
  needs: "trace",
  asks: "weights",
  unheld:
    "The text is long, and this file holds maps of it rather than every weight: look at them in Map. For the lines between " +
    "its tokens write the file with a larger size, seen.to_html(path, size=1024), or run: regard view.",
  mount: (root, context) => new Heads(root, context),
};

class Heads {
  constructor(root, context) {
    Object.assign(this, { context, trace: context.trace, hover: null, dragged: null });
    this.paint = painter(() => this.draw());
    this.build(root);
    this.watcher = new ResizeObserver(() => this.paint(true));
    this.watcher.observe(this.box);
    this.update(context.state.get());
    this.box.scrollTop = bounded(this.state.at, 0, this.querySide.labels.length) * ROW;
  }

  build(root) {
    const { state } = this.context;
    this.callBox = el("span");
    this.buttons = headButtons((chosen) => state.set({ heads: chosen }));
    this.mass = slider(
      "Mass",
      [LEAST, 1, 0.05],
      1,
      (x) => (x >= 1 ? "all" : `${Math.round(100 * x)} %`),
      (mass) => state.set({ mass: mass >= 1 ? null : mass }),
      "Of each query and head only the strongest links are drawn, until they hold this much of its weight",
    );
    this.sink = tick(
      "Mute first",
      false,
      (on) => this.mute("first", on),
      "Leave the first token out: it is often a sink (m)",
    );
    this.special = tick(
      "Mute special",
      false,
      (on) => this.mute("special", on),
      "Leave [CLS], [SEP] and their like out (s)",
    );
    this.partBox = el("span");
    const controls = el(
      "div.controls",
      {},
      this.callBox,
      this.buttons,
      this.mass,
      this.sink,
      this.special,
      this.partBox,
    );
    this.lines = el("canvas");
    this.over = el("canvas");
    this.spacer = el("div.spacer");
    this.pane = el("div.pane", {}, this.lines, this.over);
    this.box = el(
      "div.drawing.scrolling",
      {
        tabIndex: 0,
        role: "application",
        "aria-label": "Tokens and the links between them",
        onscroll: () => this.scrolled(),
      },
      this.pane,
      this.spacer,
    );
    this.aside = el("aside.aside", { "aria-label": "What the chosen token looks at" });
    root.append(controls, el("div.split", {}, this.box, this.aside));
    this.pane.addEventListener("pointermove", (event) => this.moved(event));
    this.pane.addEventListener("pointerleave", () => this.point(null));
    this.pane.addEventListener("pointerdown", (event) => this.pressed(event));
    this.pane.addEventListener("pointerup", () => (this.dragged = null));
    this.box.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
  }

  // State

  update(state) {
    this.state = state;
    const call = callOf(this.trace, state);
    if (call !== this.call) {
      this.rows?.close();
      this.call = call;
      this.rows = new Rows(
        this.context.source,
        this.trace,
        call,
        state.entry ?? 0,
        () => this.paint(),
        this.context.fail,
      );
      this.links = null;
      this.callBox.replaceChildren(callChoice(this.trace, call, (id) => this.context.state.set({ call: id })));
    }
    if (!this.links || this.level !== this.context.level) {
      this.level = this.context.level;
      const before = { query: this.querySide, key: this.keySide };
      this.querySide = sideOf(this.trace, call, "query", this.level);
      this.keySide = sideOf(this.trace, call, "key", this.level);
      const moved = (one) => one && { ...one, at: labelAt(this.sideOf(one), before[one.side].groups[one.at][0]) };
      [this.hover, this.last] = [moved(this.hover), moved(this.last)];
      this.links = new Links(this.rows, this.querySide, this.keySide);
      this.showParts();
    }
    const all = Array.from({ length: call.heads }, (_, i) => i);
    this.active = Array.isArray(state.heads) ? all.filter((head) => state.heads.includes(head)) : all;
    this.mutes = Array.isArray(state.mute) ? state.mute : [];
    this.colors = all.map((head) => this.context.palette.head(head, call.heads));
    this.buttons.show(call.heads, this.active, this.context.palette);
    this.share = bounded(state.mass, LEAST, 1, 1);
    this.mass.show(this.share);
    this.sink.show(this.mutes.includes("first"));
    this.special.show(this.mutes.includes("special"));
    this.muted = muted(this.keySide, this.mutes);
    this.pins = this.pinned(state.pins);
    const reach = this.keySide.labels.length - 1;
    this.shift = bounded(state.shift, -reach, reach, 0);
    const most = Math.max(this.querySide.labels.length, this.keySide.labels.length - this.shift);
    this.spacer.style.height = `${most * ROW + 24}px`;
    this.listed = null;
    this.paint();
  }

  mute(name, on) {
    const rest = this.mutes.filter((one) => one !== name);
    const next = on ? [...rest, name] : rest;
    this.context.state.set({ mute: next.length ? next : null });
  }

  showParts() {
    const parts = [...new Set([...this.querySide.parts, ...this.keySide.parts])].filter((part) => part >= 0);
    const name = (part) => "AB"[part] ?? String(part);
    const pairs = parts.flatMap((a) => parts.map((b) => [`${a}-${b}`, `${name(a)} → ${name(b)}`]));
    this.pairs = parts.length < 2 ? [] : pairs.map(([pair]) => pair);
    if (parts.length < 2) {
      this.partBox.replaceChildren();
      return;
    }
    const options = [["", "all sentences"], ...pairs];
    const changed = (part) => this.context.state.set({ part: part || null });
    this.partBox.replaceChildren(choice("Part", options, this.state.part ?? "", changed));
  }

  // Pointing

  /** The label under the pointer: {side: "query" | "key", at}, or null. */
  under(event) {
    const bounds = this.pane.getBoundingClientRect();
    const [x, y] = [event.clientX - bounds.left, event.clientY - bounds.top];
    const { left, right } = this.columns();
    const side = x <= left + 24 ? "query" : x >= right - 24 ? "key" : null;
    if (!side) return null;
    const at = Math.floor((y + this.box.scrollTop - PAD) / ROW) + (side === "key" ? this.shift : 0);
    const labels = side === "query" ? this.querySide.labels : this.keySide.labels;
    return at >= 0 && at < labels.length ? { side, at } : null;
  }

  moved(event) {
    const found = this.under(event);
    if (this.dragged && found && found.side === this.dragged.side)
      this.select(this.dragged, found, this.dragged.before);
    this.point(found);
  }

  point(found) {
    if (found?.side === this.hover?.side && found?.at === this.hover?.at) return;
    this.hover = found;
    this.paint();
  }

  pressed(event) {
    const found = this.under(event);
    if (!found) return;
    this.box.focus({ preventScroll: true });
    if (event.shiftKey && this.last?.side === found.side) this.select(this.last, found, this.pins);
    else {
      this.toggle(found);
      this.dragged = { ...found, before: this.pins };
    }
    this.last = found;
  }

  toggle(found) {
    const name = nameOf(found);
    const rest = this.pins.filter((pin) => nameOf(pin) !== name);
    this.keep(rest.length < this.pins.length ? rest : [...this.pins, found]);
  }

  select(from, to, before) {
    const [a, b] = [Math.min(from.at, to.at), Math.max(from.at, to.at)];
    const range = Array.from({ length: b - a + 1 }, (_, i) => ({ side: from.side, at: a + i }));
    const names = new Set(range.map(nameOf));
    this.keep([...before.filter((pin) => !names.has(nameOf(pin))), ...range]);
  }

  /** Pins are kept as the positions of tokens, so that they mean the same between tokens and between words. */
  keep(pins) {
    const names = pins.flatMap((pin) => this.sideOf(pin).groups[pin.at].map((at) => nameOf({ ...pin, at })));
    this.context.state.set({ pins: names.length ? names : null });
  }

  pinned(names) {
    const found = (Array.isArray(names) ? names : [])
      .filter((name) => /^[qk]\d+$/.test(name))
      .map((name) => ({ side: name[0] === "q" ? "query" : "key", at: Number(name.slice(1)) }))
      .filter((pin) => pin.at < this.sideOf(pin).tokens.length);
    return unique(found.map((pin) => ({ ...pin, at: labelAt(this.sideOf(pin), pin.at) })));
  }

  sideOf({ side }) {
    return side === "query" ? this.querySide : this.keySide;
  }

  scrolled() {
    const at = Math.round(this.box.scrollTop / ROW);
    if (at !== (this.state.at ?? 0)) this.context.state.set({ at: at || null });
    this.paint();
  }

  /** Shift and the wheel move the keys alone. */
  wheeled(event) {
    if (!event.shiftKey) return;
    event.preventDefault();
    this.moveKeys(Math.sign(event.deltaY || event.deltaX) * 3);
  }

  moveKeys(by) {
    const most = this.keySide.labels.length - 1;
    this.context.state.set({ shift: bounded(this.shift + by, -most, most) || null });
  }

  // Keys

  get keys() {
    const set = (patch) => this.context.state.set(patch);
    return [
      { key: "ArrowDown", text: "next token", run: () => this.step(1) },
      { key: "ArrowUp", text: "previous token", run: () => this.step(-1) },
      { key: "ArrowLeft", text: "the queries’ column", run: () => this.cross("query") },
      { key: "ArrowRight", text: "the keys’ column", run: () => this.cross("key") },
      { key: "Enter", text: "pin the token", run: () => this.hover && this.toggle(this.hover) },
      { key: "Escape", text: "unpin all", run: () => this.unpin() },
      { key: "]", text: "next layer", run: () => this.layer(1) },
      { key: "[", text: "previous layer", run: () => this.layer(-1) },
      { key: ".", text: "next head alone", run: () => this.isolate(1) },
      { key: ",", text: "previous head alone", run: () => this.isolate(-1) },
      { key: "a", text: "all heads", run: () => set({ heads: null }) },
      {
        key: "m",
        text: "mute the first token",
        run: () => this.mute("first", !this.mutes.includes("first")),
      },
      {
        key: "s",
        text: "mute special tokens",
        run: () => this.mute("special", !this.mutes.includes("special")),
      },
      { key: "ArrowDown", shift: true, text: "keys down", run: () => this.moveKeys(3) },
      { key: "ArrowUp", shift: true, text: "keys up", run: () => this.moveKeys(-3) },
    ];
  }

  unpin() {
    this.point(null);
    this.context.state.set({ pins: null });
  }

  step(by) {
    const { side, at } = this.hover ?? this.last ?? { side: "query", at: by > 0 ? -1 : 1 };
    const labels = side === "query" ? this.querySide.labels : this.keySide.labels;
    this.reveal({ side, at: Math.min(labels.length - 1, Math.max(0, at + by)) });
  }

  cross(side) {
    const labels = side === "query" ? this.querySide.labels : this.keySide.labels;
    this.reveal({ side, at: Math.min(labels.length - 1, this.hover?.at ?? 0) });
  }

  reveal(found) {
    const y = (found.at - (found.side === "key" ? this.shift : 0)) * ROW;
    const height = this.box.clientHeight - 2 * ROW;
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    else if (y > this.box.scrollTop + height) this.box.scrollTop = y - height;
    this.last = found;
    this.point(found);
  }

  layer(by) {
    const at = this.trace.calls.indexOf(this.call) + by;
    if (this.trace.calls[at]) this.context.state.set({ call: this.trace.calls[at].id });
  }

  isolate(by) {
    const now = this.active.length === 1 ? this.active[0] : by > 0 ? -1 : 0;
    this.context.state.set({ heads: [(now + by + this.call.heads) % this.call.heads] });
  }

  // Drawing

  columns(width = this.box.clientWidth) {
    const column = Math.max(90, Math.min(200, width * 0.26));
    return { left: column, right: width - column, width };
  }

  /** Everything `headlines` needs to know of the moment. */
  scene(width, height) {
    return {
      ...this.columns(width),
      height,
      top: this.box.scrollTop - PAD,
      shift: this.shift,
      active: this.active,
      colors: this.colors,
      querySide: this.querySide,
      keySide: this.keySide,
      links: this.links,
      muted: this.muted,
      mass: this.share,
      part: this.pairs.includes(this.state.part) ? this.state.part : null,
      theme: this.context.theme,
    };
  }

  /** The labels whose links are shown; none means those of every query in view. */
  focus() {
    return this.hover && !this.dragged
      ? [...this.pins.filter((pin) => pin.side === this.hover.side), this.hover]
      : this.pins;
  }

  shown(scene) {
    const focus = unique(this.focus());
    if (!focus.length) return { focus, links: visible(scene).flatMap((query) => linksFrom(scene, query, false)) };
    return {
      focus,
      links: focus.flatMap(({ side, at }) => (side === "query" ? linksFrom(scene, at) : linksTo(scene, at))),
    };
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
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
    drawTokens(ctx, scene, shown.focus, shown.links, this.pins, this.hover, inks(this.box));
    this.list(shown);
  }

  // Words beside it

  list({ focus, links }) {
    const key = JSON.stringify([focus, links.length, this.active, this.level, this.call.id]);
    if (key === this.listed) return;
    this.listed = key;
    const parts = focus.length
      ? summary(this, focus, links, (found) => this.bring(found))
      : legend(this, visible(this.scene(this.box.clientWidth, this.box.clientHeight)), links);
    this.aside.replaceChildren(...parts);
    if (this.hover) this.context.announce(said(this, this.hover, links));
  }

  /** Bring a label into view: a key is moved beside the queries that are looked at. */
  bring({ side, at }) {
    if (side === "key" && this.keySide.labels.length * ROW > this.box.clientHeight) {
      const middle = Math.round((this.box.scrollTop + this.box.clientHeight / 2) / ROW);
      this.context.state.set({ shift: at - middle || null });
    } else this.reveal({ side, at });
  }

  // Export and tests

  picture() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    const colors = inks(this.box);
    return {
      width,
      height,
      draw: (ctx) => {
        ctx.fillStyle = colors.paper;
        ctx.fillRect(0, 0, width, height);
        const scene = this.scene(width, height);
        const shown = this.shown(scene);
        drawLines(ctx, scene, shown.links);
        drawTokens(ctx, scene, shown.focus, shown.links, this.pins, this.hover, colors);
      },
    };
  }

  subject() {
    return fileParts(this.trace, this.call, this.active);
  }

  table() {
    const scene = this.scene(this.box.clientWidth, this.box.clientHeight);
    const rows = this.shown(scene).links.map((link) => [
      this.call.name,
      link.head,
      link.query,
      this.querySide.labels[link.query],
      link.key,
      this.keySide.labels[link.key],
      link.weight,
    ]);
    return [["layer", "head", "query", "query token", "key", "key token", "weight"], ...rows];
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
    };
  }

  destroy() {
    this.paint.cancel();
    this.watcher.disconnect();
    this.rows.close();
  }
}

const PAD = 12;
const LEAST = 0.05; // of the weight

function nameOf({ side, at }) {
  return `${side[0]}${at}`;
}

function unique(labels) {
  return [...new Map(labels.map((one) => [nameOf(one), one])).values()];
}
