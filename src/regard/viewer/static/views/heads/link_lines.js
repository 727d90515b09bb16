// The picture of the Heads view: which links a scene shows, the lines, and the tokens on both sides.
//
// A link is {head, query, key, weight, alpha}. Its line's opacity is its weight where a token was chosen; where those of
// every query are drawn, on top of one another, the weight over the cube root of how many heads are on.
import { shortened } from "../../draw/canvas.js";

export const ROW = 22; // pixels of a token
const FAINT = 1 / 255; // fainter than one step of a screen's colour cannot be seen
const FOG = 0.03; // fainter than this, thousands of lines together hide the others
const SPREAD = 14; // pixels over which the lines of different heads lie side by side
const BEYOND = 60; // pixels
const GROUND = 0.65; // opacity of what is under a tinted label
const LEVELS = 32; // opacities told apart, so that lines of one colour and opacity are one stroke

/** Keys that are left out: the first, or special ones. */
export function muted(keySide, names) {
  const out = new Set();
  if (names.includes("first")) out.add(0);
  if (names.includes("special")) keySide.special.forEach((special, at) => special && out.add(at));
  return out;
}

/** The queries in view. */
export function visible({ top, height, querySide }) {
  const first = Math.max(0, Math.floor(top / ROW));
  const last = Math.min(querySide.labels.length, Math.ceil((top + height) / ROW));
  return Array.from({ length: Math.max(0, last - first) }, (_, i) => first + i);
}

/** The links of one query: of each head the strongest, up to the chosen mass, without the muted. */
export function linksFrom(scene, query, alone = true) {
  const { active, links, muted: left, mass } = scene;
  const out = [];
  const [among, faint] = alone ? [1, FAINT] : [Math.cbrt(active.length), FOG];
  for (const head of active) {
    const found = links.from(head, query);
    if (!found) continue;
    const all = links.total(found);
    let rest = all;
    found.weights.forEach((weight, at) => {
      if (left.has(found.keys[at])) rest -= weight;
    });
    const scale = rest > 0 ? all / rest : 1;
    let sum = 0;
    for (let at = 0; at < found.keys.length; at++) {
      const [key, weight] = [found.keys[at], found.weights[at]];
      if (left.has(key)) continue;
      const alpha = Math.min(1, (weight * scale) / among);
      if (alpha < faint || (mass < 1 && sum >= mass * rest)) break; // sorted: what follows is fainter
      sum += weight;
      if (within(scene, query, key)) out.push({ head, query, key, weight, alpha });
    }
  }
  return out;
}

/** The links to one key: of each head the strongest, up to the chosen share of what the key receives. */
export function linksTo(scene, key) {
  const { active, links, mass, querySide } = scene;
  const weights = links.to(key, visible(scene));
  if (!weights) return [];
  const count = querySide.labels.length;
  const out = [];
  for (const head of active) {
    const row = weights.subarray(head * count, (head + 1) * count);
    const all = row.reduce((sum, weight) => sum + weight, 0);
    const order = Array.from(row.keys())
      .filter((query) => row[query] >= FAINT)
      .sort((a, b) => row[b] - row[a]);
    let sum = 0;
    for (const query of order) {
      if (mass < 1 && sum >= mass * all) break;
      sum += row[query];
      if (within(scene, query, key)) out.push({ head, query, key, weight: row[query], alpha: Math.min(1, row[query]) });
    }
  }
  return out;
}

function within({ part, querySide, keySide }, query, key) {
  return part == null || part === `${querySide.parts[query]}-${keySide.parts[key]}`;
}

function middle(scene, side, at) {
  return (at - (side === "key" ? scene.shift : 0) + 0.5) * ROW - scene.top;
}

export function drawLines(ctx, scene, links) {
  const buckets = new Map();
  for (const link of links) {
    const key = link.head * (LEVELS + 1) + Math.max(1, Math.round(link.alpha * LEVELS));
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
    const head = Math.floor(key / (LEVELS + 1));
    ctx.strokeStyle = scene.colors[head];
    // The faintest level is the mean of what is in it, so that many faint lines are not made strong.
    ctx.globalAlpha = level > 1 ? level / LEVELS : mean(bucket);
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

/** A token out of view is drawn to just beyond the edge: a line straight to it would leave the picture at once. */
function near(scene, y) {
  return Math.min(scene.height + BEYOND, Math.max(-BEYOND, y));
}

function mean(bucket) {
  return bucket.reduce((sum, link) => sum + link.alpha, 0) / bucket.length;
}

/** Both columns of tokens; those that the focused ones are linked to are tinted, one stripe per head. */
export function drawTokens(ctx, scene, focus, links, pins, hover, colors) {
  for (const side of ["query", "key"]) drawColumn(ctx, scene, side, focus, links, { pins, hover, colors });
}

function drawColumn(ctx, scene, side, focus, links, { pins, hover, colors }) {
  const { labels, special } = side === "query" ? scene.querySide : scene.keySide;
  const shift = side === "key" ? scene.shift : 0;
  const first = Math.max(0, Math.floor(scene.top / ROW) + shift);
  const last = Math.min(labels.length, Math.ceil((scene.top + scene.height) / ROW) + shift);
  const [x, width] = side === "query" ? [0, scene.left] : [scene.right, scene.width - scene.right];
  // Tokens are tinted where something on the other side is focused.
  const tinted = focus.some((one) => one.side !== side);
  if (tinted) stripes(ctx, scene, side, links, first, last, x, width);
  const pinned = new Set(pins.filter((pin) => pin.side === side).map((pin) => pin.at));
  const hovered = hover?.side === side ? hover.at : -1;
  ctx.textAlign = side === "query" ? "right" : "left";
  ctx.textBaseline = "middle";
  const edge = side === "query" ? scene.left - 2 : scene.right + 2;
  for (let at = first; at < last; at++) {
    const y = middle(scene, side, at);
    if (pinned.has(at) || at === hovered) {
      ctx.fillStyle = colors.faint;
      ctx.globalAlpha = 0.9;
      ctx.fillRect(x, y - ROW / 2, width, ROW);
      ctx.globalAlpha = 1;
    }
    if (pinned.has(at)) {
      ctx.fillStyle = colors.accent;
      ctx.fillRect(side === "query" ? scene.left + 4 : scene.right - 7, y - ROW / 2 + 3, 3, ROW - 6);
    }
    ctx.font = `${pinned.has(at) || at === hovered ? "600 " : ""}13px ${colors.font}`;
    const label = shortened(ctx, labels[at], width - 16);
    if (tinted) {
      // A pale ground under the letters: on a strong colour they could not be read.
      const wide = ctx.measureText(label).width + 6;
      ctx.fillStyle = colors.paper;
      ctx.globalAlpha = GROUND;
      ctx.fillRect(side === "query" ? edge - wide + 2 : edge - 2, y - ROW / 2 + 1, wide, ROW - 2);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = (special[at] || scene.muted.has(at)) && !tinted ? colors.soft : colors.ink;
    ctx.fillText(label, edge, y);
  }
}

function stripes(ctx, scene, side, links, first, last, x, width) {
  const slot = new Map(scene.active.map((head, at) => [head, at]));
  const w = width / Math.max(1, scene.active.length);
  const sums = new Map();
  for (const link of links) {
    const at = side === "query" ? link.query : link.key;
    if (at < first || at >= last) continue;
    const key = at * scene.colors.length + link.head;
    sums.set(key, (sums.get(key) ?? 0) + link.alpha);
  }
  for (const [key, alpha] of sums) {
    const [at, head] = [Math.floor(key / scene.colors.length), key % scene.colors.length];
    ctx.fillStyle = scene.colors[head];
    ctx.globalAlpha = Math.min(0.75, alpha);
    ctx.fillRect(x + slot.get(head) * w, middle(scene, side, at) - ROW / 2 + 1, w, ROW - 2);
  }
  ctx.globalAlpha = 1;
}
