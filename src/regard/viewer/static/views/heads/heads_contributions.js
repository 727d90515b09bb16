// The words beside the Heads view while it shows contributions: what each key added to the chosen answer, or took from it.
import { isNumbered, ownName } from "../../data/calls.js";
import { el } from "../../draw/dom.js";
import { counted, number } from "../../draw/numbers.js";
import { barRow } from "../../draw/weight_bars.js";
import { clearButton } from "./heads_sidebar.js";

const LISTED = 8;

/** The tokens that the focused ones are linked to, by the size of their contributions. */
export function contributionSummary(view, focus, links, bring) {
  const side = focus[focus.length - 1].side;
  const chosen = new Set(focus.filter((one) => one.side === side).map(({ at }) => at));
  const opposite = side === "query" ? "key" : "query";
  const own = side === "query" ? view.querySide : view.keySide;
  const other = side === "query" ? view.keySide : view.querySide;
  const sums = new Map();
  for (const link of links) if (chosen.has(link[side])) add(sums, link[opposite], link);
  const best = [...sums.values()].sort((a, b) => Math.abs(b.sum) - Math.abs(a.sum)).slice(0, LISTED);
  const names = [...chosen].slice(0, 3).map((at) => `“${own.labels[at]}”`);
  const title =
    side === "query"
      ? `To ${view.answerChoice.name}, through ${names.join(", ")}`
      : `To ${view.answerChoice.name}, from ${names.join(", ")}`;
  return [
    el("div.aside-title", {}, el("h2", {}, title), ...clearButton(view)),
    el("p.quietly", {}, `sum over ${counted(view.active.length, "head")}; + adds to the score, − takes from it`),
    el(
      "div.bars",
      {},
      ...best.map((one) => row(view, one, other.labels[one.at], Math.abs(best[0].sum), bring, opposite)),
    ),
    ...(best.length ? [] : [el("p.quietly", {}, "Nothing here contributes, or every head is off.")]),
  ];
}

function add(sums, at, { head, weight }) {
  const found = sums.get(at) ?? { at, sum: 0, most: 0, head: 0 };
  found.sum += weight;
  if (Math.abs(weight) > Math.abs(found.most)) [found.most, found.head] = [weight, head];
  sums.set(at, found);
}

function row({ active, context: { palette } }, { at, sum, most, head }, label, largest, bring, side) {
  const line = barRow({
    label,
    at,
    weight: sum,
    share: Math.abs(sum) / largest,
    head: { number: head, color: palette.head(head), ink: palette.overHead(head) },
    most: active.length > 1 ? most : null,
    title: `token ${at}; most by head ${head}: ${number(most)}`,
    run: () => bring({ side, at }),
  });
  const fill = /** @type {HTMLElement} */ (line.firstElementChild);
  fill.style.background = palette.signed(sum < 0 ? -0.35 : 0.35);
  return line;
}

/** A square in the colour of a sign. */
function sign(palette, x) {
  const square = el("span", { "aria-hidden": "true" }, "■");
  square.style.color = palette.signed(x);
  return square;
}

/** What is drawn where nothing is focused: the totals of this layer's heads. */
export function contributionLegend(view, _queries, links) {
  const { call, answerChoice } = view;
  const totals = answerChoice.ofCall(call)?.totals ?? [];
  const largest = Math.max(...totals.map(Math.abs), 1e-30);
  const { palette } = view.context;
  const bars = view.active.map((head) => {
    const line = barRow({
      label: "head",
      at: head,
      weight: totals[head],
      share: Math.abs(totals[head]) / largest,
      title: "all its contributions added up",
      run: () => view.context.state.set({ heads: [head] }),
    });
    const fill = /** @type {HTMLElement} */ (line.firstElementChild);
    fill.style.background = palette.signed(totals[head] < 0 ? -0.35 : 0.35);
    return line;
  });
  const name = isNumbered(view.trace) ? `Layer ${call.layer}` : ownName(view.trace, call);
  return [
    el("h2", {}, `${name} to ${answerChoice.name}`),
    el(
      "p",
      {},
      sign(palette, 0.7),
      " adds to its score, ",
      sign(palette, -0.7),
      " takes from it. A line is as strong as its contribution; the strongest of this layer is ",
      number(answerChoice.ofCall(call)?.peak ?? 0),
      ".",
    ),
    el("p.quietly", {}, `${links.length.toLocaleString("en")} links drawn. All contributions of each head, added up:`),
    el("div.bars", {}, ...bars),
    el("p.quietly", {}, "Click a token to keep it chosen. Effects lists the heads of all layers."),
  ];
}
