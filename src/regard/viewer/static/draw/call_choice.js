// The menu of a trace's layers.
import { ownName } from "../data/calls.js";
import { choice } from "./dom.js";

/** A list of `calls`, `changed(id)` when another is chosen. @param {Trace} trace @param {Call} call */
export function callChoice(trace, call, changed, { calls = trace.calls, label = "Layer" } = {}) {
  const several = new Set(trace.calls.map((one) => one.kind)).size > 1;
  const options = calls.map((one) => {
    const name = ownName(trace, one);
    return [one.id, several ? `${name} (${one.kind})` : name];
  });
  return choice(label, options, call.id, changed, { title: call.name });
}
