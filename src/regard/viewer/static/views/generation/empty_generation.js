// The Generation view of a trace in which the model wrote nothing.
import { el } from "../../draw/dom.js";

/** What stands where the model wrote nothing. */
export function emptyGeneration(root, context) {
  const words =
    "Nothing was written in this trace: the model read its text in one pass. This view needs a model that writes.";
  const run = context.sample("generate");
  const prompt = context.text();
  const about = prompt ? `It reads your text and continues it: “${prompt}”` : "It continues an example.";
  const button = run
    ? el(
        "div",
        {},
        el("button.primary", { type: "button", onclick: run }, "Let a model write"),
        el("p.quietly", {}, about),
      )
    : el("p", {}, "In Python: with regard.watch(model) as seen: model.generate(…), then seen.show().");
  root.append(el("div.empty", {}, el("p", {}, words), button));
  return { update() {}, drawn: () => ({ written: [] }), destroy() {} };
}
