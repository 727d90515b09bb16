// The part of the state that belongs to one trace.
import { callOf } from "../data/calls.js";
import { sideOf } from "../data/tokens.js";

/** Words of which one asks what they stand for. */
const PRONOUNS = new Set("it she he they her him them its his their this that who which".split(" "));

/** Another trace is looked at from its beginning: what was chosen in the last one may not exist in it. */
export function ofTrace(id) {
  const chosen = ["call", "other", "head", "heads", "query", "entry", "pins", "step", "at", "shift", "part", "toward"];
  const linked = ["model", "sentence", "second", "generate"]; // of the link that the page was opened with
  return { trace: id, ...Object.fromEntries([...chosen, ...linked].map((key) => [key, null])) };
}

/** A word worth choosing in a new text, as in the first view: the last pronoun, or the longest word. @param {Trace} trace */
export function wordToPin(trace, call) {
  if (!trace.calls.length) return null;
  const { labels, special } = sideOf(trace, callOf(trace, { call }), "query", "token");
  const words = labels.flatMap((label, at) => (special[at] || !/^\p{L}{2,}$/u.test(label) ? [] : [{ label, at }]));
  const pronoun = words.findLast(({ label }) => PRONOUNS.has(label.toLowerCase()));
  const longest = words.reduce((most, word) => (word.label.length > (most?.label.length ?? 0) ? word : most), words[0]);
  const word = pronoun ?? longest;
  return word ? [`q${word.at}`] : null;
}
