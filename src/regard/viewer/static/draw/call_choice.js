// The menu of a trace's layers.
import { ownName } from "../data/calls.js";
import { choice } from "./dom.js";

/** A list of the calls, `changed(id)` when another is chosen. */
export function callChoice(trace, call, changed) {
  const several = new Set(trace.calls.map((one) => one.kind)).size > 1;
  const options = trace.calls.map((one) => {
    const name = ownName(trace, one);
    return [one.id, several ? `${name} (${one.kind})` : name];
  });
  return choice("Layer", options, call.id, changed, { title: call.name });
}
