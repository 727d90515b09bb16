// A text of tokens, each with its shade: as elements on the page, and drawn for export.
import { shortened } from "./canvas.js";

const [HEIGHT, GAP, PAD] = [24, 4, 6];

/** Shade an element by x, 0 to 1; below a fiftieth it stays plain. */
export function shade(node, x, palette) {
  node.style.background = x > 0.02 ? palette.ramp(x) : "";
  node.style.color = x > 0.02 ? palette.over(x) : "";
}

/** Shade an element by x, −1 to 1. */
export function shadeSigned(node, x, palette) {
  const plain = Math.abs(x) <= 0.02;
  node.style.background = plain ? "" : palette.signed(x);
  node.style.color = plain ? "" : palette.overSigned(x);
}

/** Draw labels in lines no wider than `width`, from (x, y) down; returns the y below the last line. */
export function drawFlow(ctx, items, x, y, width, palette, colors, signed = false) {
  const [fill, over] = signed ? [palette.signed, palette.overSigned] : [palette.ramp, palette.over];
  let [left, top] = [x, y];
  ctx.font = `14px ${colors.font}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { label, shade: amount } of items) {
    const text = shortened(ctx, label, width - 2 * PAD);
    const wide = ctx.measureText(text).width + 2 * PAD;
    if (left + wide > x + width && left > x) [left, top] = [x, top + HEIGHT + GAP];
    if (Math.abs(amount) > 0.02) {
      ctx.fillStyle = fill(amount);
      ctx.fillRect(left, top, wide, HEIGHT);
    }
    ctx.fillStyle = Math.abs(amount) > 0.02 ? over(amount) : colors.ink;
    ctx.fillText(text, left + PAD, top + HEIGHT / 2);
    left += wide + GAP;
  }
  return top + HEIGHT + GAP;
}
