// The Generation view as a picture and as a table.
import { context2d, inks } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";
import { drawFlow } from "../../draw/token_flow.js";

const CHART = 120; // pixels of the chart, from top to bottom

/** The text with what the token of this step looked at, and the chart below. */
export function generationPicture(view) {
  const [width, colors, { palette }] = [view.chartBox.clientWidth + 40, inks(view.chartBox), view.context];
  const weights = view.shown(view.step);
  const most = largestSize(weights);
  const signed = view.contributions.on;
  const items = view.keySide.labels
    .slice(view.first)
    .map((label, at) => ({ label, shade: view.amount(weights, at + view.first, most) }));
  const ruler = context2d(el("canvas"));
  const below = drawFlow(ruler, items, 20, 48, width - 40, palette, colors, signed);
  return {
    width,
    height: below + CHART + 30,
    draw: (ctx) => {
      ctx.fillStyle = colors.paper;
      ctx.fillRect(0, 0, width, below + CHART + 30);
      ctx.fillStyle = colors.ink;
      ctx.font = `600 16px ${colors.font}`;
      ctx.textBaseline = "middle";
      const title = signed
        ? `contributions to ${view.answerChoice.name}`
        : `${view.written[view.step].label} looked at`;
      ctx.fillText(title, 20, 24);
      drawFlow(ctx, items, 20, 48, width - 40, palette, colors, signed);
      ctx.save();
      ctx.translate(20, below + 10);
      view.chartOn(ctx, width - 40, CHART);
      ctx.restore();
    },
  };
}

export function generationLegend(view) {
  if (view.contributions.on) {
    const most = number(largestSize(view.shown(view.step)));
    return {
      signed: true,
      from: `−${most}`,
      to: most,
      words: `contribution to ${view.answerChoice.name}, square-root scale`,
    };
  }
  return { to: "1", words: "weight, square-root scale" };
}

export function generationTable(view) {
  const weights = view.shown(view.step) ?? [];
  const rows = view.keySide.labels.map((label, at) => [
    view.step,
    view.written[view.step].label,
    at,
    label,
    weights[at],
  ]);
  return [["step", "written", "key", "token", "weight"], ...rows];
}

/** The largest size of some numbers. @param {Float32Array | null} weights */
export function largestSize(weights) {
  return weights ? weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0) : 0;
}
