// The sidebar of the Generation view: the keys that the token of this step looked at most.
//
// `view` has call, rows, keySide, written, step, spans, first and looked(step), as the view has them.
import { STRONGEST } from "../../data/weight_rows.js";
import { el } from "../../draw/dom.js";
import { barRow } from "../../draw/weight_bars.js";
import { given } from "./prompt_split.js";

const LISTED = 10;

/** The elements of the list. */
export function strongestKeys(view, weights) {
  const signed = view.contributions.on;
  const size = (at) => (signed ? Math.abs(weights[at]) : weights[at]);
  const order = weights ? Array.from(weights.keys()).sort((a, b) => size(b) - size(a)) : [];
  const best = order.slice(0, LISTED).filter((at) => size(at) > 0);
  const rows = best.map((at) =>
    barRow({
      label: view.keySide.labels[at],
      at,
      weight: weights[at],
      share: size(at) / size(best[0]),
      title: `token ${at}`,
      run: () => view.spans[at - view.first]?.scrollIntoView({ block: "nearest" }),
    }),
  );
  const prompt = signed ? null : promptShare(view, view.looked(view.step));
  if (signed)
    rows.forEach((row, n) => {
      const fill = /** @type {HTMLElement} */ (row.firstElementChild);
      fill.style.background = view.context.palette.signed(weights[best[n]] < 0 ? -0.35 : 0.35);
    });
  const title = signed ? `Contributions to ${view.answerChoice.name}` : `“${view.written[view.step].label}” looked at`;
  return [el("h2", {}, title), el("div.bars", {}, ...rows), ...(prompt == null ? [] : [el("p.quietly", {}, prompt)])];
}

/** How much of the weight lies on the prompt. */
function promptShare(view, weights) {
  if (!weights || view.call.query_side === "target") return null; // a translator has a source, no prompt
  let [on, all] = [0, 0];
  view.keySide.groups.forEach((group, at) => {
    all += weights[at];
    if (group[0] < given(view.trace, view.call)) on += weights[at];
  });
  if (!all) return null;
  if (view.rows.dense) return `${Math.round((100 * on) / all)} % of the weight is on the prompt.`;
  const known = `of a long text each head’s ${STRONGEST} strongest keys are counted`;
  return `At least ${Math.floor(100 * on)} % of the weight is on the prompt: ${known}.`;
}
