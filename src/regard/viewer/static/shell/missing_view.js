// What stands instead of a view that has nothing to show: what it needs, and how to get it.
import { callOf, callPath } from "../data/calls.js";
import { el } from "../draw/dom.js";
import { noTrace } from "./no_trace.js";

/** An element, or null where the view can be opened. @param {View} view */
export function missingView(shell, view) {
  if (view.needs === "trace" && !shell.trace) {
    const id = shell.traceId();
    return noTrace({
      unknown: id != null && !shell.listed(id),
      linked: shell.state.get(),
      traces: shell.about.traces,
      pick: (trace) => shell.pick(trace),
      type: shell.reading.possible ? () => shell.sentence.focus() : null,
    });
  }
  if (view.asks && !holds(shell, view.asks)) return el("div.empty", {}, el("p", {}, view.unheld));
  const task = !["trace", "nothing"].includes(view.needs) && view.needs;
  if (task && !shell.about.models.some((model) => model.task === task)) {
    const words = view.without ?? `No model for this is here: ${view.title} needs one that can “${task}”.`;
    const file = shell.source.holds && "A single file runs no model. Those that ship are shown by: regard view.";
    return el("div.empty", {}, el("p", {}, file || words));
  }
  return null;
}

/** Whether the source can answer this part of the call that is looked at; all but a file can answer everything. */
function holds({ source, trace, state }, part) {
  const path = callPath(trace, callOf(trace, state.get()));
  return source.holds?.(`${path}/${part}`) ?? true;
}
