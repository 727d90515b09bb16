// What stands where there is no trace to look at: why, and what to do about it.
import { el } from "../draw/dom.js";

const LISTED = 4; // traces that are offered instead

/** `unknown`: a link led to a trace that is not here; `type()` goes to the text box, null where no model can read.
 *
 * @param {{unknown: boolean, linked: State, traces: About["traces"], pick(id: string): void, type: (() => void) | null}} options
 */
export function noTrace({ unknown, linked, traces, pick, type }) {
  const { model, sentence } = linked;
  const what = model && sentence ? `${model} reading “${sentence}”` : "a trace";
  const words = unknown
    ? `This link is to ${what}, which is not here: it was made on another computer, or before the server was restarted.`
    : "There is nothing to look at yet. A trace is what a model attended to while it read or wrote a text.";
  const help = model && sentence && unknown ? `To see it, install the model ${model} where this server runs.` : "";
  const python = "In Python: with regard.watch(model) as seen: model(…), then seen.show() or seen.save(folder).";
  return el(
    "div.empty",
    {},
    el("p", {}, words),
    help ? el("p", {}, help) : null,
    ...traces
      .slice(0, LISTED)
      .map((trace) => el("p", {}, el("button", { type: "button", onclick: () => pick(trace.id) }, trace.title))),
    type ? el("button.primary", { type: "button", onclick: type }, "Type a sentence") : el("p", {}, python),
  );
}
