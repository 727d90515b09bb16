// One layer of the Heads view: its weights, and the picture of lines between two columns of tokens.
//
// What all layers that are shown share, such as the tokens, the pins and what is hidden, is the view's.
import { labelAt } from "../data/tokens.js";
import { Links } from "../data/weights.js";
import { fit, inks, place, scrollingCanvas, shortened } from "../draw/canvas.js";
import { bounded, el, headsOn, number } from "../draw/elements.js";

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
    this.root = el("div.panel-column.layer-column", this.box);
    /** Where squares and lines were drawn, for who points at them. @type {any[]} */
    this.marks = [];
  }

  /** @param {Call} call */
  show(call) {
    const { answerChoice, querySide, keySide, state } = this.view;
    const rows = answerChoice.rows(this.rows ?? null, call, () => this.paint());
    if (rows !== this.rows) this.last = null;
    if (rows !== this.rows || this.links?.querySide !== querySide || this.links?.keySide !== keySide)
      this.links = new Links(rows, querySide, keySide);
    this.call = call;
    this.rows = rows;
    this.active = headsOn(call, state);
    this.colors = Array.from({ length: call.heads }, (_, head) => this.context.palette.head(head));
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
      all: view.all,
      /** Habits of this layer; null for a long text, of contributions, and while weights are on their way. */
      habits: this.rows.signed ? null : this.links?.habits(),
      marks: this.marks,
      peak: this.rows.signed ? view.answerChoice.ofCall(this.call)?.peak || 1 : 0,
      opacities: Array.from({ length: this.call.heads }, (_, head) => palette.headOpacity(head)),
      ramp: palette.ramp,
      waiting: false, // whether weights are on their way; set while links are looked up
      signs: [palette.signed(-0.7), palette.signed(0.7)],
      theme: this.context.theme,
      ...inks(this.box),
      chosen: view.focus().length > 0,
    };
  }

  shown(scene) {
    const focus = unique(this.view.focus());
    const queries = visible(scene).filter((query) => !scene.mutedQueries.has(query));
    const links = focus.length
      ? focus.flatMap(({ side, at }) => (side === "query" ? linksFrom(scene, at) : linksTo(scene, at)))
      : queries.flatMap((query) => linksFrom(scene, query, false));
    for (const link of links) link.habit = scene.habits?.of(link.head, link.query, link.key, link.weight) ?? null;
    const lines = scene.all ? links : standingOut(links);
    return { focus, links, lines, rows: visible(scene), waiting: scene.waiting };
  }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    this.stretch();
    const scene = this.scene(width, height);
    const shown = this.shown(scene);
    const ctx = fit(this.canvas, width, height);
    ctx.clearRect(0, 0, width, height);
    this.marks.length = 0;
    drawLines(ctx, scene, shown.lines);
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
// A link is {head, query, key, weight, alpha, habit}. `alpha` is the weight itself, whatever is hidden; where the links of every
// query are drawn, on top of one another, the weight over the cube root of how many heads are on. Of contributions (a scene
// with a `peak`) it is their share of the largest one of the layer, and the colour is that of their sign. Equal weights look
// equally strong in every head: the width of a line grows with the weight, its opacity with a power of the weight
// (`POWERS`) and with how near the head's colour is to the page (`headOpacity`); the squares beside tokens have the colours
// of Map.

const [LOW, HIGH] = [22, 68]; // pixels of a token: as high as the window lets all of them be, within these
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

/** Tokens of one side that are left out: the first, or special ones, as a link says. */
export function muted({ special }, names) {
  const out = (one, at) => (one && names.includes("special")) || (at === 0 && names.includes("first"));
  return new Set(special.flatMap((one, at) => (out(one, at) ? [at] : [])));
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

const FEW = 7; // lines that are drawn unless all are asked for

/** What is left of a weight without its head's habit; of a contribution its size. */
export function surplus({ weight, habit, alpha }) {
  return habit == null ? alpha : weight - habit;
}

/** The links that differ most from what their heads do from other words. */
function standingOut(links) {
  return links
    .filter((link) => surplus(link) > 0)
    .sort((a, b) => surplus(b) - surplus(a))
    .slice(0, FEW);
}

/** The links of one query, of each head those that can be seen, without the muted.
 *
 * Sets `scene.waiting` where weights are on their way.
 */
export function linksFrom(scene, query, alone = true) {
  const { active, links, muted: left } = scene;
  const out = [];
  const [among, faint] = alone ? [1, FAINT] : [Math.cbrt(active.length), FOG];
  for (const head of active) {
    const found = links.from(head, query);
    if (!found) {
      scene.waiting = true;
      continue;
    }
    const scale = scene.peak ? 1 / scene.peak : 1;
    for (let at = 0; at < found.keys.length; at++) {
      const [key, weight] = [found.keys[at], found.weights[at]];
      if (left.has(key)) continue;
      const alpha = Math.min(1, (sized(scene, weight) * scale) / among);
      if (alpha < faint) break; // sorted: what follows is fainter
      out.push({ head, query, key, weight, alpha, habit: null });
    }
  }
  return out;
}

/** The links to one key: of each head those that can be seen. */
export function linksTo(scene, key) {
  const { active, links, querySide } = scene;
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
    const order = Array.from(row.keys())
      .filter((query) => size(query) >= FAINT && !scene.mutedQueries?.has(query))
      .sort((a, b) => size(b) - size(a));
    for (const query of order) {
      const alpha = Math.min(1, size(query));
      out.push({ head, query, key, weight: row[query], alpha, habit: null });
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

export function drawLines(ctx, scene, lines) {
  const buckets = new Map();
  for (const link of lines) {
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
  const thick = scene.chosen || !scene.all;
  for (const [key, bucket] of [...buckets].sort((a, b) => (a[0] % (LEVELS + 1)) - (b[0] % (LEVELS + 1)))) {
    const level = key % (LEVELS + 1);
    const { head, weight } = bucket[0];
    ctx.strokeStyle = colorOf(scene, head, weight);
    // The faintest level is the mean of what is in it, so that many faint lines are not made strong.
    const alpha = level > 1 ? level / LEVELS : mean(bucket);
    ctx.globalAlpha = scene.peak
      ? alpha
      : Math.min(1, lineOpacity({ ...scene, chosen: thick }, alpha) * scene.opacities[head]);
    if (thick) ctx.lineWidth = lineWidth(alpha);
    ctx.beginPath();
    for (const link of bucket) {
      const y0 = near(scene, middle(scene, "query", link.query)) + aside.get(head);
      const y1 = near(scene, middle(scene, "key", link.key)) + aside.get(head);
      ctx.moveTo(left, y0);
      ctx.bezierCurveTo(left + bend, y0, right - bend, y1, right, y1);
      scene.marks.push({ link, line: [left, y0, right, y1] });
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  if (!scene.all) labelLines(ctx, scene, lines, [left, right]);
}

/** Head and weight at the free end of each line, side by side where several end at one token. */
function labelLines(ctx, scene, lines, [left, right]) {
  const column = lines.every(({ key }) => key === lines[0].key) && lines.some(({ query }) => query !== lines[0].query);
  const [side, direction] = column ? ["query", 1] : ["key", -1];
  const taken = new Map();
  Object.assign(ctx, { font: `600 11px ${scene.font}`, textAlign: column ? "left" : "right", textBaseline: "middle" });
  for (const link of lines) {
    const text = `${link.head}: ${scene.peak ? number(link.weight) : link.weight.toFixed(2)}`;
    const width = ctx.measureText(text).width + 10;
    const before = taken.get(link[side]) ?? 0;
    if (before + width > (right - left) * 0.7) continue; // no room beside the others
    taken.set(link[side], before + width);
    const [from, to] = column ? ["key", "query"] : ["query", "key"];
    const end = middle(scene, to, link[to]);
    const outside = end > middle(scene, from, link[from]) ? 1 : -1; // the side that the line does not come from
    const [x, y] = [(column ? left : right) + direction * before, end + outside * (10 + SPREAD / 4)];
    ctx.fillStyle = scene.paper;
    Object.assign(ctx, { globalAlpha: 0.7 });
    ctx.fillRect(column ? x - 2 : x - width + 8, y - 7, width - 6, 14);
    Object.assign(ctx, { globalAlpha: 1, fillStyle: colorOf(scene, link.head, link.weight) });
    ctx.fillRect(column ? x : x - width + 10, y + 6, width - 10, 2);
    ctx.fillStyle = scene.ink;
    ctx.fillText(text, x, y);
  }
}

/** What is drawn at a place: the square there, or the nearest line. */
export function markAt(marks, x, y) {
  const square = marks.find(
    ({ box }) => box && x >= box[0] && x < box[0] + box[2] && y >= box[1] && y < box[1] + box[3],
  );
  if (square) return square.link;
  let [best, least] = [null, REACH];
  for (const { link, line } of marks) {
    if (!line || x < line[0] || x > line[2]) continue;
    const distance = Math.abs(heightAt(line, x) - y);
    if (distance < least) [best, least] = [link, distance];
  }
  return best;
}

const REACH = 6; // pixels from a line that still mean it

/** The height of a line at x: of its cubic, whose x grows with t. */
function heightAt([x0, y0, x1, y1], x) {
  const share = (x - x0) / (x1 - x0);
  let [low, high] = [0, 1];
  for (let n = 0; n < 20; n++) {
    const t = (low + high) / 2;
    if (3 * (1 - t) ** 2 * t * 0.45 + 3 * (1 - t) * t * t * 0.55 + t ** 3 < share) low = t;
    else high = t;
  }
  return y0 + (y1 - y0) * (3 * (1 - low) * low * low + low ** 3);
}

/** Of a line of weights, before the colour of its head is considered. */
export function lineOpacity({ theme, chosen }, alpha) {
  return alpha ** POWERS[theme][chosen ? "chosen" : "all"];
}

/** Of a chosen token's line. */
function lineWidth(alpha) {
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
  const letters = Math.round(Math.min(17, 4 + row * 0.41) + Math.max(0, row - 44) / 3);
  const pinned = new Set(pins.filter((pin) => pin.side === side).map((pin) => pin.at));
  const hovered = hover?.side === side ? hover.at : -1;
  const chosen = (at) => pinned.has(at) || at === hovered;
  ctx.font = `600 ${letters}px ${colors.font}`;
  const widest = labels.slice(first, last).reduce((most, label) => Math.max(most, ctx.measureText(label).width), 0);
  // Tokens get the weights of each head beside them where something on the other side is focused.
  const weighed = focus.some((one) => one.side !== side);
  const room = weighed ? Math.min(widest + 12, width * LABELS) : width - 8;
  for (let at = first; at < last; at++)
    if (chosen(at)) {
      Object.assign(ctx, { globalAlpha: 0.9, fillStyle: colors.faint });
      ctx.fillRect(x, middle(scene, side, at) - row / 2, width, row);
      ctx.globalAlpha = 1;
    }
  if (weighed) {
    const from = side === "query" ? x + EDGE : x + room + 4;
    drawWeights(ctx, scene, side, links, first, last, [from, width - room - 4 - EDGE], colors);
  }
  ctx.textAlign = side === "query" ? "right" : "left";
  ctx.textBaseline = "middle";
  const edge = side === "query" ? scene.left - 2 : scene.right + 2;
  for (let at = first; at < last; at++) {
    const y = middle(scene, side, at);
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
  const [sums, of] = [new Map(), new Map()];
  const among = side === "key" && !scene.peak ? new Set(links.map(({ query }) => query)).size : 1;
  for (const link of links) {
    const at = side === "query" ? link.query : link.key;
    if (at < first || at >= last) continue;
    const key = at * scene.colors.length + link.head;
    of.set(key, link);
    sums.set(key, (sums.get(key) ?? 0) + ((scene.peak && link.weight < 0 ? -1 : 1) * link.alpha) / among);
  }
  for (const [key, alpha] of sums) {
    const [at, head] = [Math.floor(key / scene.colors.length), key % scene.colors.length];
    ctx.fillStyle = scene.peak ? colorOf(scene, head, alpha) : scene.ramp(Math.sqrt(alpha));
    ctx.globalAlpha = scene.peak ? Math.min(1, Math.abs(alpha)) : 1;
    const box = [
      x + slot.get(head) * w,
      middle(scene, side, at) - scene.row / 2 + 1,
      Math.max(1, w - 1),
      scene.row - 2,
    ];
    ctx.fillRect(box[0], box[1], box[2], box[3]);
    scene.marks.push({ link: of.get(key), box });
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
    /** The line or square that is pointed at, and what it says. */
    this.link = null;
    /** @type {string | null} */
    this.read = null;
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
    pane.addEventListener("pointerleave", () => this.point(null, null));
    pane.addEventListener("pointerdown", (event) => this.pressed(event, panel));
    pane.addEventListener("pointerup", (event) => this.released(event, panel));
    // A finger that scrolls: the browser ends the pointer, and nothing is chosen.
    pane.addEventListener("pointercancel", () => {
      [this.dragged, this.tapped] = [null, null];
      this.point(null, null);
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
    if (panel.marks.some(({ box }) => box && x >= box[0] && x < box[0] + box[2])) return null; // among the squares
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
    const { x, y } = place(event, panel.pane);
    this.point(pin, pin ? null : markAt(panel.marks, x, y));
  }

  /** At a token, or at a line or a square: what it says stands below the picture. */
  point(pin, link = null) {
    if (link !== this.link) {
      this.link = link;
      this.read = link && this.view.aside.read(link);
      this.view.context.drew();
    }
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
