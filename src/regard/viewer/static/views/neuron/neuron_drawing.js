// The drawing of the Neuron view: the query on top, then a row for each key.
//
// `view` has row, the pixels of a row, and call, query, peaks, normalizer, hover, rows, key(j), querySide, keySide and context, as the view has them.
import { shortened } from "../../draw/canvas.js";
import { number } from "../../draw/numbers.js";

const [LEAST, MOST] = [24, 36]; // pixels of a row
export const TOP = 78; // the query and the titles stay above the rows
export const BELOW = 12; // pixels that stay free after the last row

/** Pixels of a row: as many as let these rows fill the height. */
export function rowHeight(height, rows) {
  return Math.min(MOST, Math.max(LEAST, Math.floor((height - TOP - BELOW) / Math.max(1, rows))));
}

/** Where each column begins, and how wide they are. */
export function columns(width) {
  const narrow = width < 640;
  const gap = narrow ? 6 : 16;
  const label = narrow ? width * 0.16 : Math.max(80, Math.min(150, width * 0.12));
  const bar = narrow ? width * 0.2 : Math.max(86, Math.min(150, width * 0.12));
  const strip = (width - 2 * label - 2 * bar - 6 * gap) / 2;
  const key = label + gap;
  const k = key + label + gap;
  const product = k + strip + gap;
  const energy = product + strip + gap;
  return {
    width,
    narrow,
    label,
    bar,
    strip,
    key,
    k,
    product,
    energy,
    weight: energy + bar + gap,
    room: bar - (narrow ? 42 : 58),
  };
}

export function drawTop(ctx, view, at, colors) {
  ctx.textBaseline = "middle";
  ctx.font = `12px ${colors.font}`;
  ctx.fillStyle = colors.soft;
  ctx.textAlign = "left";
  const { peaks } = view;
  const titles = at.narrow
    ? { k: "kⱼ", product: "q · k", energy: "energy", weight: "weight" }
    : {
        k: `key kⱼ (±${number(peaks.k)})`,
        product: `product (±${number(peaks.product)})`,
        energy: "energy",
        weight: `weight${view.normalizer ? ` (${view.normalizer})` : ""}`,
      };
  for (const [part, text] of Object.entries(titles)) ctx.fillText(text, at[part], TOP - 14);
  ctx.textAlign = "right";
  ctx.fillText("query i", at.label - 8, TOP - 14);
  ctx.fillText("key j", at.key + at.label - 8, TOP - 14);
  const found = view.key(0);
  ctx.fillStyle = colors.ink;
  ctx.font = `600 13px ${colors.font}`;
  ctx.fillText(view.querySide.labels[view.query], at.key + at.label - 8, 24);
  if (found) strip(ctx, view, found.block.q, at.k, 12, at.strip, LEAST, peaks.q);
  ctx.textAlign = "left";
  ctx.font = `12px ${colors.font}`;
  ctx.fillStyle = colors.soft;
  ctx.fillText(at.narrow ? "← query qᵢ" : `← its query qᵢ (±${number(peaks.q)})`, at.product, 24);
  ctx.fillStyle = colors.line;
  ctx.fillRect(0, TOP - 2, at.width, 1);
}

export function drawRow(ctx, view, at, row, y, colors) {
  const { row: high } = view;
  const middle = y + high / 2;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  if (row < view.call.queries) {
    const chosen = row === view.query;
    if (chosen || (view.hover?.part === "query" && view.hover.row === row)) {
      ctx.fillStyle = chosen ? colors.accent : colors.faint;
      ctx.fillRect(0, y + 1, at.label, high - 2);
    }
    ctx.font = `${chosen ? "600 " : ""}13px ${colors.font}`;
    ctx.fillStyle = chosen ? colors.onAccent : view.querySide.special[row] ? colors.soft : colors.ink;
    ctx.fillText(shortened(ctx, view.querySide.labels[row], at.label - 16), at.label - 8, middle);
  }
  if (row >= view.call.keys) return;
  const hovered = view.hover && view.hover.part !== "query" && view.hover.row === row;
  if (hovered) {
    ctx.fillStyle = colors.faint;
    ctx.fillRect(at.key, y, at.width - at.key, high);
  }
  ctx.font = `${hovered ? "600 " : ""}13px ${colors.font}`;
  ctx.fillStyle = view.keySide.special[row] ? colors.soft : colors.ink;
  ctx.fillText(shortened(ctx, view.keySide.labels[row], at.label - 16), at.key + at.label - 8, middle);
  const found = view.key(row);
  if (!found) return;
  const { block, at: n } = found;
  const [energy, weight] = [block.modified[n], block.weight[n]]; // null where the mask closes it
  view.rows.push({ key: row, energy, weight, block, at: n });
  strip(ctx, view, block.k[n], at.k, y + 3, at.strip, high - 6, view.peaks.k);
  if (block.product) strip(ctx, view, block.product[n], at.product, y + 3, at.strip, high - 6, view.peaks.product);
  ctx.font = `12.5px ${colors.font}`;
  if (energy != null) {
    const half = at.room / 2;
    const x = at.energy + half;
    const length = (half * energy) / (view.peaks.modified || 1);
    ctx.fillStyle = view.context.palette.signed(Math.sign(energy) * 0.62);
    ctx.fillRect(Math.min(x, x + length), y + 6, Math.abs(length), high - 12);
  }
  ctx.fillStyle = view.context.palette.ramp(0.6);
  ctx.fillRect(at.weight, y + 6, (at.room * weight) / (view.peaks.weight || 1), high - 12);
  ctx.fillStyle = colors.ink;
  ctx.textAlign = "right";
  ctx.fillText(energy == null ? "masked" : energy.toFixed(2), at.energy + at.bar - 4, middle);
  ctx.fillText(number(weight), at.weight + at.bar - 4, middle);
}

function strip(ctx, view, values, x, y, width, height, peak) {
  const w = width / values.length;
  values.forEach((value, d) => {
    ctx.fillStyle = view.context.palette.signed(value / (peak || 1));
    ctx.fillRect(x + d * w, y, w > 4 ? w - 1 : w, height);
  });
  if (view.hover?.d != null) {
    ctx.strokeStyle = view.context.palette.theme === "dark" ? "#ffffff" : "#000000";
    ctx.lineWidth = 1;
    ctx.strokeRect(x + view.hover.d * w, y - 1, Math.max(w - 1, 1), height + 2);
  }
}
