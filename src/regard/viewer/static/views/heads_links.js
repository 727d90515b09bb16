// One layer of the Heads view: its weights, and the picture of lines between two columns of tokens.
//
// What all layers that are shown share, such as the tokens, the pins and what is hidden, is the view's.
import { labelAt, layerTitle } from "../data/tokens.js";
import { Links } from "../data/weights.js";
import { fit, inks, place, scrollingCanvas, shortened } from "../draw/canvas.js";
import { bounded, el, headsOn } from "../draw/elements.js";

const NARROW = 520; // pixels: a phone

export class LayerPanel {
  /** @type {Call} */
  call;
  /** @type {import("../data/weights.js").Rows} */
  rows;
  /** @type {Links | null} */
  links;
  /** The heads that are on. @type {number[]} */
  active;
  /** What was drawn last. @type {ReturnType<LayerPanel["shown"]> | null} */
  last = null;

  /** `view` is the Heads view; `scrolled(panel)` and `painted()` are called after either. */
  constructor(view, scrolled, painted) {
    this.view = view;
    this.context = view.context;
    this.trace = view.trace;
    this.painted = painted;
    this.scroll = scrollingCanvas({
      label: "Tokens and the links between them: arrow keys choose a token, Enter keeps it",
      draw: () => this.draw(),
      scrolled: () => scrolled(this),
    });
    this.canvas = this.scroll.canvas;
    this.box = this.scroll.box;
    this.pane = this.scroll.pane;
    this.paint = this.scroll.paint;
    this.title = el("p.panel-title", { hidden: true });
    this.root = el("div.panel-column.layer-column", this.title, this.box);
  }

  /** Show a layer. `named`: there is another one beside it. @param {Call} call */
  show(call, named) {
    const { answerChoice, querySide, keySide, state } = this.view;
    const rows = answerChoice.rows(this.rows ?? null, call, () => this.paint());
    if (rows !== this.rows) this.last = null;
    if (rows !== this.rows || this.links?.querySide !== querySide || this.links?.keySide !== keySide)
      this.links = new Links(rows, querySide, keySide);
    this.call = call;
    this.rows = rows;
    this.active = headsOn(call, state);
    this.colors = Array.from({ length: call.heads }, (_, head) => this.context.palette.head(head));
    this.title.hidden = !named;
    this.title.textContent = layerTitle(this.trace, call);
    this.stretch();
    this.paint();
  }

  // Drawing

  /** Pixels of a token. */
  get row() {
    return rowHeight(
      this.box.clientHeight,
      Math.max(this.view.querySide.labels.length, this.view.keySide.labels.length),
    );
  }

  /** What is scrolled is as high as the longer column. */
  stretch() {
    const most = Math.max(this.view.querySide.labels.length, this.view.keySide.labels.length - this.view.shift);
    const height = `${most * this.row + 2 * PAD}px`;
    if (this.scroll.spacer.style.height !== height) this.scroll.spacer.style.height = height;
  }

  columns(width = this.box.clientWidth) {
    if (width < NARROW) return { left: width * 0.24, right: width * 0.62, width }; // room for the weights of each head
    const column = Math.max(90, Math.min(280, width * 0.28));
    return { left: column, right: width - column, width };
  }

  /** Everything that the picture needs to know of the moment. */
  scene(width = this.box.clientWidth, height = this.box.clientHeight) {
    const { view } = this;
    const { palette } = this.context;
    return {
      ...this.columns(width),
      height,
      top: this.box.scrollTop - PAD,
      row: this.row,
      shift: view.shift,
      active: this.active,
      colors: this.colors,
      querySide: this.view.querySide,
      keySide: this.view.keySide,
      links: this.links,
      muted: view.muted,
      mutedQueries: view.mutedQueries,
      mass: view.share,
      peak: this.rows.signed ? view.answerChoice.ofCall(this.call)?.peak || 1 : 0,
      opacities: Array.from({ length: this.call.heads }, (_, head) => palette.headOpacity(head)),
      ramp: palette.ramp,
      waiting: false, // whether weights are on their way; set while links are looked up
      signs: [palette.signed(-0.7), palette.signed(0.7)],
      theme: this.context.theme,
      chosen: view.focus().length > 0,
    };
  }

  shown(scene) {
    const focus = unique(this.view.focus());
    const queries = visible(scene).filter((query) => !scene.mutedQueries.has(query));
    const links = focus.length
      ? focus.flatMap(({ side, at }) => (side === "query" ? linksFrom(scene, at) : linksTo(scene, at)))
      : queries.flatMap((query) => linksFrom(scene, query, false));
    return { focus, links, rows: visible(scene), waiting: scene.waiting };
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    this.stretch();
    const scene = this.scene(width, height);
    const shown = this.shown(scene);
    const ctx = fit(this.canvas, width, height);
    ctx.clearRect(0, 0, width, height);
    drawLines(ctx, scene, shown.links);
    this.drawTokens(ctx, scene, shown);
    this.last = shown;
    this.painted();
  }

  drawTokens(ctx, scene, { focus, links }) {
    drawTokens(ctx, scene, focus, links, this.view.pins, this.view.pointer.hover, inks(this.box));
  }

  close() {
    this.scroll.close();
    this.rows.close();
    this.root.remove();
  }
}

// The picture of the Heads view: which links a scene shows, the lines, and the tokens on both sides.
//
// A link is {head, query, key, weight, alpha}. `alpha` is the weight itself, whatever is hidden; where the links of every
// query are drawn, on top of one another, the weight over the cube root of how many heads are on. Of contributions (a scene
// with a `peak`) it is their share of the largest one of the layer, and the colour is that of their sign. Equal weights look
// equally strong in every head: the width of a line grows with the weight, its opacity with a power of the weight
// (`POWERS`) and with how near the head's colour is to the page (`headOpacity`); the squares beside tokens have the colours
// of Map.

const [LOW, HIGH] = [22, 44]; // pixels of a token: as high as the window lets all of them be, within these
export const PAD = 12; // pixels above the first
const FAINT = 1 / 255; // fainter than one step of a screen's colour cannot be seen
const FOG = 0.03; // fainter than this, thousands of lines together hide the others
const SPREAD = 14; // pixels over which the lines of different heads lie side by side
const BEYOND = 60; // pixels
const LABELS = 0.62; // of a column's width at most, for its labels; the rest is for the weights of each head
const EDGE = 6; // pixels left free at the edge of the picture
/** Opacity is alpha to this power. Under the lines of all tokens only strong ones may be strong; the few of a chosen token
 * are all seen. Thin lines are harder to see on a dark page, so that faint ones are stronger there.
 */
const POWERS = { light: { all: 1, chosen: 1 / 2 }, dark: { all: 3 / 4, chosen: 1 / 3 } };
const LEVELS = 32; // opacities told apart, so that lines of one colour and opacity are one stroke

/** Pixels of one token where `count` of them stand in a window of this height. */
function rowHeight(height, count) {
  return Math.max(LOW, Math.min(HIGH, Math.floor((height - 2 * PAD) / Math.max(1, count))));
}

/** Tokens of one side that are left out: the first, or special ones. */
export function muted(side, names) {
  const out = new Set();
  if (names.includes("first")) out.add(0);
  if (names.includes("special")) side.special.forEach((special, at) => special && out.add(at));
  return out;
}

/** Queries whose lines are left out unless they are chosen: those that are left out as keys of the same text. */
export function mutedQueries(querySide, keySide, names) {
  return querySide.name === keySide.name ? muted(querySide, names) : new Set();
}

/** The queries in view. */
export function visible({ top, height, row, querySide }) {
  const first = Math.max(0, Math.floor(top / row));
  const last = Math.min(querySide.labels.length, Math.ceil((top + height) / row));
  return Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i);
}

/** The links of one query: of each head the strongest, up to the chosen mass, without the muted.
 *
 * Sets `scene.waiting` where weights are on their way.
 */
export function linksFrom(scene, query, alone = true) {
  const { active, links, muted: left, mass } = scene;
  const out = [];
  const [among, faint] = alone ? [1, FAINT] : [Math.cbrt(active.length), FOG];
  for (const head of active) {
    const found = links.from(head, query);
    if (!found) {
      scene.waiting = true;
      continue;
    }
    let rest = links.total(found);
    found.weights.forEach((weight, at) => {
      if (left.has(found.keys[at])) rest -= sized(scene, weight);
    });
    const scale = scene.peak ? 1 / scene.peak : 1;
    let sum = 0;
    for (let at = 0; at < found.keys.length; at++) {
      const [key, weight] = [found.keys[at], found.weights[at]];
      if (left.has(key)) continue;
      const alpha = Math.min(1, (sized(scene, weight) * scale) / among);
      if (alpha < faint || (mass < 1 && sum >= mass * rest)) break; // sorted: what follows is fainter
      sum += sized(scene, weight);
      out.push({ head, query, key, weight, alpha });
    }
  }
  return out;
}

/** The links to one key: of each head the strongest, up to the chosen share of what the key receives. */
export function linksTo(scene, key) {
  const { active, links, mass, querySide } = scene;
  const weights = links.to(key, visible(scene));
  if (!weights) {
    scene.waiting = true;
    return [];
  }
  const count = querySide.labels.length;
  const out = [];
  for (const head of active) {
    const row = weights.subarray(head * count, (head + 1) * count);
    const size = (query) => sized(scene, row[query]) / (scene.peak || 1);
    const all = row.reduce((sum, _, query) => sum + size(query), 0);
    const order = Array.from(row.keys())
      .filter((query) => size(query) >= FAINT && !scene.mutedQueries?.has(query))
      .sort((a, b) => size(b) - size(a));
    let sum = 0;
    for (const query of order) {
      if (mass < 1 && sum >= mass * all) break;
      sum += size(query);
      const alpha = Math.min(1, size(query));
      out.push({ head, query, key, weight: row[query], alpha });
    }
  }
  return out;
}

/** A weight, or the size of a contribution. */
function sized({ peak }, weight) {
  return peak ? Math.abs(weight) : weight;
}

/** The colour of a link: that of its head, or of its sign. */
function colorOf(scene, head, weight) {
  return scene.peak ? scene.signs[weight < 0 ? 0 : 1] : scene.colors[head];
}

function middle(scene, side, at) {
  return (at - (side === "key" ? scene.shift : 0) + 0.5) * scene.row - scene.top;
}

export function drawLines(ctx, scene, links) {
  const buckets = new Map();
  for (const link of links) {
    const kind = 2 * link.head + (scene.peak && link.weight < 0 ? 1 : 0);
    const key = kind * (LEVELS + 1) + Math.max(1, Math.round(link.alpha * LEVELS));
    if (!buckets.has(key)) buckets.set(key, []);
    buckets.get(key).push(link);
  }
  const [left, right] = [scene.left + 10, scene.right - 10];
  const bend = (right - left) * 0.45;
  const step = Math.min(3, SPREAD / Math.max(1, scene.active.length));
  const aside = new Map(scene.active.map((head, at) => [head, (at - (scene.active.length - 1) / 2) * step]));
  ctx.lineWidth = Math.min(1.6, step + 0.4);
  ctx.lineCap = "round";
  for (const [key, bucket] of [...buckets].sort((a, b) => (a[0] % (LEVELS + 1)) - (b[0] % (LEVELS + 1)))) {
    const level = key % (LEVELS + 1);
    const { head, weight } = bucket[0];
    ctx.strokeStyle = colorOf(scene, head, weight);
    // The faintest level is the mean of what is in it, so that many faint lines are not made strong.
    const alpha = level > 1 ? level / LEVELS : mean(bucket);
    ctx.globalAlpha = scene.peak ? alpha : Math.min(1, lineOpacity(scene, alpha) * scene.opacities[head]);
    if (scene.chosen) ctx.lineWidth = lineWidth(alpha);
    ctx.beginPath();
    for (const link of bucket) {
      const y0 = near(scene, middle(scene, "query", link.query)) + aside.get(head);
      const y1 = near(scene, middle(scene, "key", link.key)) + aside.get(head);
      ctx.moveTo(left, y0);
      ctx.bezierCurveTo(left + bend, y0, right - bend, y1, right, y1);
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
}

/** Of a line of weights, before the colour of its head is considered. */
export function lineOpacity({ theme, chosen }, alpha) {
  return alpha ** POWERS[theme][chosen ? "chosen" : "all"];
}

/** Of a chosen token's line. */
export function lineWidth(alpha) {
  return 1 + 6 * alpha;
}

/** A token out of view is drawn to just beyond the edge: a line straight to it would leave the picture at once. */
function near(scene, y) {
  return Math.min(scene.height + BEYOND, Math.max(-BEYOND, y));
}

function mean(bucket) {
  return bucket.reduce((sum, link) => sum + link.alpha, 0) / bucket.length;
}

/** Both columns of tokens; those that the focused ones are linked to have their weights beside them, head by head. */
function drawTokens(ctx, scene, focus, links, pins, hover, colors) {
  for (const side of ["query", "key"]) drawColumn(ctx, scene, side, focus, links, { pins, hover, colors });
}

function drawColumn(ctx, scene, side, focus, links, { pins, hover, colors }) {
  const { labels, special } = side === "query" ? scene.querySide : scene.keySide;
  const { row } = scene;
  const shift = side === "key" ? scene.shift : 0;
  const first = Math.max(0, Math.floor(scene.top / row) + shift);
  const last = Math.min(labels.length, Math.ceil((scene.top + scene.height) / row) + shift);
  const [x, width] = side === "query" ? [0, scene.left] : [scene.right, scene.width - scene.right];
  const letters = Math.round(Math.min(17, 4 + row * 0.41));
  const pinned = new Set(pins.filter((pin) => pin.side === side).map((pin) => pin.at));
  const hovered = hover?.side === side ? hover.at : -1;
  const chosen = (at) => pinned.has(at) || at === hovered;
  ctx.font = `600 ${letters}px ${colors.font}`;
  const widest = labels.slice(first, last).reduce((most, label) => Math.max(most, ctx.measureText(label).width), 0);
  // Tokens get the weights of each head beside them where something on the other side is focused.
  const weighed = focus.some((one) => one.side !== side);
  const room = weighed ? Math.min(widest + 12, width * LABELS) : width - 8;
  if (weighed) {
    const from = side === "query" ? x + EDGE : x + room + 4;
    drawWeights(ctx, scene, side, links, first, last, [from, width - room - 4 - EDGE], colors);
  }
  ctx.textAlign = side === "query" ? "right" : "left";
  ctx.textBaseline = "middle";
  const edge = side === "query" ? scene.left - 2 : scene.right + 2;
  for (let at = first; at < last; at++) {
    const y = middle(scene, side, at);
    if (chosen(at)) {
      ctx.fillStyle = colors.faint;
      ctx.globalAlpha = 0.9;
      ctx.fillRect(x, y - row / 2, width, row);
      ctx.globalAlpha = 1;
    }
    if (pinned.has(at)) {
      ctx.fillStyle = colors.accent;
      ctx.fillRect(side === "query" ? scene.left + 4 : scene.right - 7, y - row / 2 + 3, 3, row - 6);
    }
    ctx.font = `${chosen(at) ? "600 " : ""}${letters}px ${colors.font}`;
    ctx.fillStyle = (special[at] || scene.muted.has(at)) && !chosen(at) ? colors.soft : colors.ink;
    ctx.fillText(shortened(ctx, labels[at], room - 4), edge, y);
  }
}

/** Beside each label one square per head in the colour of its weight; above them the heads' numbers and colours.
 *
 * Of several queries the mean of their weights, of several keys the sum, as in the words beside the picture.
 */
function drawWeights(ctx, scene, side, links, first, last, [x, width], colors) {
  const slot = new Map(scene.active.map((head, at) => [head, at]));
  const w = width / Math.max(1, scene.active.length);
  const sums = new Map();
  const among = side === "key" && !scene.peak ? new Set(links.map(({ query }) => query)).size : 1;
  for (const link of links) {
    const at = side === "query" ? link.query : link.key;
    if (at < first || at >= last) continue;
    const key = at * scene.colors.length + link.head;
    sums.set(key, (sums.get(key) ?? 0) + ((scene.peak && link.weight < 0 ? -1 : 1) * link.alpha) / among);
  }
  for (const [key, alpha] of sums) {
    const [at, head] = [Math.floor(key / scene.colors.length), key % scene.colors.length];
    ctx.fillStyle = scene.peak ? colorOf(scene, head, alpha) : scene.ramp(Math.sqrt(alpha));
    ctx.globalAlpha = scene.peak ? Math.min(1, Math.abs(alpha)) : 1;
    ctx.fillRect(
      x + slot.get(head) * w,
      middle(scene, side, at) - scene.row / 2 + 1,
      Math.max(1, w - 1),
      scene.row - 2,
    );
  }
  ctx.globalAlpha = 1;
  if (scene.top > 0) return;
  const digits = String(Math.max(...scene.active)).length;
  const every = Math.ceil((3 + 6 * digits) / w); // each head's number, or every second where they are too narrow
  Object.assign(ctx, { font: `9px ${colors.font}`, textAlign: "center", textBaseline: "middle" });
  for (const [head, at] of slot) {
    ctx.fillStyle = scene.colors[head];
    ctx.fillRect(x + at * w, -scene.top - 2, Math.max(1, w - 1), 3);
    ctx.fillStyle = colors.soft;
    if (at % every === 0) ctx.fillText(String(head), x + (at + 0.5) * w - 0.5, -scene.top - PAD + 5);
  }
}

const STILL = 10; // pixels: a finger that moves farther scrolls

/** `view` is the Heads view: its panels, sides, pins and state. What is pointed at in one panel is so in all. */
export class TokenPointer {
  constructor(view) {
    this.view = view;
    /** The token that is pointed at. @type {Pin | null} */
    this.hover = null;
    /** The token that was pointed at or pressed last. @type {Pin | null} */
    this.last = null;
    /** Where a drag over several tokens began, with the pins of that moment. @type {(Pin & {before: Pin[]}) | null} */
    this.dragged = null;
    /** Where a finger went down. @type {{x: number, y: number} | null} */
    this.tapped = null;
  }

  /** Follow the pointer over one panel. @param {LayerPanel} panel */
  listen(panel) {
    const { pane, box } = panel;
    pane.addEventListener("pointermove", (event) => this.moved(event, panel));
    pane.addEventListener("pointerleave", () => this.point(null));
    pane.addEventListener("pointerdown", (event) => this.pressed(event, panel));
    pane.addEventListener("pointerup", (event) => this.released(event, panel));
    // A finger that scrolls: the browser ends the pointer, and nothing is chosen.
    pane.addEventListener("pointercancel", () => {
      [this.dragged, this.tapped] = [null, null];
      this.point(null);
    });
    box.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
  }

  /** The labels are others now: `renamed(pin)` is where a token stands among them. */
  follow(renamed) {
    if (this.hover) this.hover = renamed(this.hover);
    if (this.last) this.last = renamed(this.last);
  }

  labels(side) {
    return this.view.sideOf({ side }).labels;
  }

  /** The label under the pointer. @returns {Pin | null} */
  under(event, panel) {
    const { view } = this;
    const { x, y } = place(event, panel.pane);
    const { left, right } = panel.columns();
    const side = x <= left + 24 ? "query" : x >= right - 24 ? "key" : null;
    if (!side) return null;
    const at = Math.floor((y + panel.box.scrollTop - PAD) / panel.row) + (side === "key" ? view.shift : 0);
    return at >= 0 && at < this.labels(side).length ? { side, at } : null;
  }

  moved(event, panel) {
    if (event.pointerType === "touch") return; // a finger that moves scrolls
    const pin = this.under(event, panel);
    if (this.dragged && pin && pin.side === this.dragged.side)
      this.view.keep(withRange(this.dragged.before, this.dragged, pin));
    this.point(pin);
  }

  point(pin) {
    if (pin?.side === this.hover?.side && pin?.at === this.hover?.at) return;
    this.hover = pin;
    this.view.paint();
  }

  pressed(event, panel) {
    if (event.pointerType === "touch") this.tapped = { x: event.clientX, y: event.clientY };
    else this.choose(event, panel);
  }

  released(event, panel) {
    this.dragged = null;
    const from = this.tapped;
    this.tapped = null;
    if (from && Math.hypot(event.clientX - from.x, event.clientY - from.y) < STILL) this.choose(event, panel);
  }

  /** The token under the pointer alone; with Shift all from the last one on, with Control one more. */
  choose(event, panel) {
    const { view } = this;
    const pin = this.under(event, panel);
    if (!pin) return;
    if (event.shiftKey && this.last?.side === pin.side) view.keep(withRange(view.pins, this.last, pin));
    else {
      view.toggle(pin, event.ctrlKey || event.metaKey);
      if (event.pointerType !== "touch") this.dragged = { ...pin, before: view.pins };
    }
    this.last = pin;
  }

  /** Shift and the wheel move the keys alone. */
  wheeled(event) {
    if (!event.shiftKey) return;
    event.preventDefault();
    this.moveKeys(Math.sign(event.deltaY || event.deltaX) * 3);
  }

  moveKeys(by) {
    const most = this.labels("key").length - 1;
    this.view.context.state.set({ shift: bounded(this.view.shift + by, -most, most) || null });
  }

  /** To the next token of a column. */
  step(by) {
    const { side, at } = this.hover ?? this.last ?? { side: "query", at: by > 0 ? -1 : 1 };
    this.reveal({ side, at: Math.min(this.labels(side).length - 1, Math.max(0, at + by)) });
  }

  /** To the other column. */
  cross(side) {
    this.reveal({ side, at: Math.min(this.labels(side).length - 1, this.hover?.at ?? 0) });
  }

  /** Point at a token and scroll to it. */
  reveal(pin) {
    const { box, row, shift } = this.view;
    const y = (pin.at - (pin.side === "key" ? shift : 0)) * row;
    const height = box.clientHeight - 2 * row;
    if (y < box.scrollTop) box.scrollTop = y;
    else if (y > box.scrollTop + height) box.scrollTop = y - height;
    this.last = pin;
    this.point(pin);
  }
}

// Pins of the Heads view: labels that stay chosen. A link names them by the positions of their tokens, "q3" or "k10", so
// that they mean the same between tokens and between words.

/** @typedef {{side: "query" | "key", at: number}} Pin a label that is pointed at or pinned */

/** @param {Pin} pin */
function nameOf({ side, at }) {
  return `${side[0]}${at}`;
}

/** Each label once. @param {Pin[]} pins */
function unique(pins) {
  return [...new Map(pins.map((pin) => [nameOf(pin), pin])).values()];
}

/** Pins without one that is among them, or with one that is not. @param {Pin[]} pins @param {Pin} pin */
export function toggled(pins, pin) {
  const rest = pins.filter((one) => nameOf(one) !== nameOf(pin));
  return rest.length < pins.length ? rest : [...pins, pin];
}

/** Pins and everything between two labels of one side. @param {Pin[]} pins @param {Pin} from @param {Pin} to */
function withRange(pins, from, to) {
  const [a, b] = [Math.min(from.at, to.at), Math.max(from.at, to.at)];
  const range = Array.from({ length: b - a + 1 }, (_, i) => ({ side: from.side, at: a + i }));
  const names = new Set(range.map(nameOf));
  return [...pins.filter((pin) => !names.has(nameOf(pin))), ...range];
}

/** The names of pins in a link. `sideOf(pin)` is the side of a call that a pin is on. @param {Pin[]} pins */
export function pinNames(pins, sideOf) {
  return pins.flatMap((pin) => sideOf(pin).groups[pin.at].map((at) => nameOf({ ...pin, at })));
}

/** The pins that a link names; what it says otherwise is left out. @returns {Pin[]} */
export function pinsNamed(names, sideOf) {
  const known = (Array.isArray(names) ? names : [])
    .filter((name) => /^[qk]\d+$/.test(name))
    .map((name) => /** @type {Pin} */ ({ side: name[0] === "q" ? "query" : "key", at: Number(name.slice(1)) }))
    .filter((pin) => pin.at < sideOf(pin).tokens.length);
  return unique(known.map((pin) => ({ ...pin, at: labelAt(sideOf(pin), pin.at) })));
}
