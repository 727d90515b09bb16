// Calls of a trace: their paths in the API, and their names.

/** The path of one call in the API. */
export function callPath(trace, call) {
  return `/api/traces/${encodeURIComponent(trace.id)}/calls/${encodeURIComponent(call.id)}`;
}

/** The call that is looked at: the one in the state, or the first. */
export function callOf(trace, state) {
  return trace.calls.find((call) => call.id === state.call) ?? trace.calls[0];
}

/** Whether the numbers of their layers tell calls apart. */
export function isNumbered(trace) {
  const layers = trace.calls.map((one) => one.layer);
  return !layers.includes(null) && new Set(layers).size === layers.length;
}

/** "3" where layers are enough to tell calls apart, else the module's name. */
export function callName(trace, call) {
  return isNumbered(trace) ? String(call.layer) : call.name;
}

/** The same without what all modules' names begin with: "decoder.0.cross" of "model.net.decoder.0.cross". */
export function ownName(trace, call) {
  if (isNumbered(trace)) return callName(trace, call);
  const names = trace.calls.map((one) => one.name.split("."));
  const own = call.name.split(".");
  let shared = 0;
  while (shared < own.length - 1 && names.every((parts) => parts.length > shared + 1 && parts[shared] === own[shared]))
    shared++;
  return own.slice(shared).join(".");
}

/** "Layer 3", or the module's name. */
export function layerTitle(trace, call) {
  return isNumbered(trace) ? `Layer ${call.layer}` : ownName(trace, call);
}

/** A call and its heads in the name of a file: ["layer3", "head7"]; of all heads nothing is said. */
export function fileParts(trace, call, heads) {
  const layer = isNumbered(trace) ? `layer${call.layer}` : call.name;
  const some = heads.length > 0 && (heads.length < call.heads || call.heads === 1);
  return [layer, some ? `head${heads.join("-")}` : ""];
}
