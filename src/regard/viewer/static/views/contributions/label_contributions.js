// What each word of a classified text contributed to a label, in the Read view: a switch, the labels, signed colours.
import { choice, el, segments } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";
import { shadeSigned } from "../../draw/token_flow.js";

const ELSEWHERE =
  "Contributions need a backward pass of the model. With regard on your computer, this page computes them: regard view";

/** The elements below the weights of one classifier; `result` has contributions by label, already by word. */
export function labelContributions(context, result) {
  if (!result.weights) return [];
  const toward = context.state.get().toward ?? null;
  const kinds = [
    ["looks", "Looks at", "Where the classifier looked"],
    ["contributes", "Contributes to …", "What each word adds to the score of a label, or takes from it"],
  ];
  const set = (next) => context.state.set({ toward: next });
  const kind = segments("Colours", kinds, toward ? "contributes" : "looks", (on) => set(on === "looks" ? null : {}));
  if (!toward) return [kind];
  if (!result.contributions) return [kind, el("p.quietly", {}, result.contributions_missing ?? ELSEWHERE)];
  const labels = Object.keys(result.contributions);
  const label = labels.includes(toward.label) ? toward.label : result.label;
  const minus = labels.includes(toward.less) ? toward.less : null;
  const numbers = result.contributions[label].map(
    (one, at) => one - (minus == null ? 0 : result.contributions[minus][at]),
  );
  const most = numbers.reduce((largest, one) => Math.max(largest, Math.abs(one)), 0);
  const spans = result.words.map((word, at) => {
    const span = el("span.token", { title: number(numbers[at]), "data-contribution": numbers[at] }, word);
    shadeSigned(span, most ? numbers[at] / most : 0, context.palette);
    return span;
  });
  const named = labels.map((one) => [one, one]);
  const kept = result.contribution_error <= result.contribution_budget;
  const words =
    "The contributions of all words must add up to g · o, o the pooled vector and g the gradient of the label’s score; " +
    "the error is what is left, over |g| · |o|.";
  return [
    el(
      "div.answer-choice",
      {},
      kind,
      choice("", named, label, (one) => set({ ...toward, label: one }), { "aria-label": "Label" }),
      choice("rather than", [["", "–"], ...named], minus ?? "", (one) => set({ ...toward, less: one || null })),
    ),
    el("div.tokens", { "data-kind": "contributions" }, ...spans),
    el(
      "p.quietly.small",
      {},
      `Colours from ${number(-most)} (takes from the score) to ${number(most)} (adds to it). `,
      el(
        "span.badge",
        { "data-kept": String(kept), title: words },
        `Contributions ${kept ? "" : "do not "}add up · error ${number(result.contribution_error)}`,
      ),
    ),
    el("p.quietly.small", {}, words),
  ];
}
