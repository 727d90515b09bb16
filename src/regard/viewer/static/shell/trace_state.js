// The part of the state that belongs to one trace.

/** Another trace is looked at from its beginning: what was chosen in the last one may not exist in it. */
export function ofTrace(id) {
  const chosen = ["call", "head", "heads", "query", "entry", "pins", "step", "at", "shift", "part", "toward"];
  const linked = ["model", "sentence", "second", "generate"]; // of the link that the page was opened with
  return { trace: id, ...Object.fromEntries([...chosen, ...linked].map((key) => [key, null])) };
}
