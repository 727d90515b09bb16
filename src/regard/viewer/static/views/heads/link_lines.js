// The picture of the Heads view: which links a scene shows, the lines, and the tokens on both sides.
//
// A link is {head, query, key, weight, alpha}. `alpha` is the weight itself, whatever is hidden; where the links of every
// query are drawn, on top of one another, the weight over the cube root of how many heads are on. Of contributions (a scene
// with a `peak`) it is their share of the largest one of the layer, and the colour is that of their sign. Equal weights look
// equally strong in every head: the width of a line grows with the weight, its opacity with a power of the weight
// (`POWERS`) and with how near the head's colour is to the page (`headOpacity`); the squares beside tokens have the colours
// of Map.
import { shortened } from "../../draw/canvas.js";

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
export function rowHeight(height, count) {
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
      if (within(scene, query, key)) out.push({ head, query, key, weight, alpha });
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
      if (within(scene, query, key)) out.push({ head, query, key, weight: row[query], alpha });
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

function within({ part, querySide, keySide }, query, key) {
  return part == null || part === `${querySide.parts[query]}-${keySide.parts[key]}`;
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
export function drawTokens(ctx, scene, focus, links, pins, hover, colors) {
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
