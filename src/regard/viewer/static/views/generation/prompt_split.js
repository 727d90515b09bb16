// Which tokens of a trace the model wrote, and which it was given.
import { plain } from "../../data/tokens.js";

/** How many tokens the model was given before it wrote: a prompt, or what a decoder begins with. */
export function given(trace, call) {
  return call.query_side === "target" ? call.steps[0] : trace.prompt;
}

/** The tokens that were written, and the row in which each was: [{label, row, after}].
 *
 * A decoder's rows are named by what they write. In a language model row i is token i, and writes the one after it.
 */
export function written(trace, call, side) {
  if (call.query_side === "target") return side.labels.map((label, row) => ({ label, row, after: null }));
  const labels = (trace.sides[call.query_side] ?? side.tokens).map(plain); // the last is written and never read
  const out = [];
  for (let at = given(trace, call); at < labels.length && at <= call.queries; at++)
    out.push({ label: labels[at], row: at - 1, after: labels[at - 1] });
  return out;
}
