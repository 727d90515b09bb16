// The answers of a model that contributions lead to: which one is chosen, and what it takes to compute them.
//
// GET /api/traces/{t}/answers gives {position, positions, kind, answer, minus, value, answers: [{id, piece, score, share}],
// calls: [{id, error, budget, kept, peak, totals}], missing: {call: why}}.
import { plain } from "./tokens.js";

const PATH = (trace) => `/api/traces/${encodeURIComponent(trace.id)}/answers`;

/** @param {Context} context @param {QueryParameters} asked @param {AbortSignal} [signal] @returns {Promise<Answers>} */
export function fetchAnswers({ source, trace }, asked, signal) {
  return source.get(PATH(trace), asked, signal);
}

/** Why no contributions can be computed here, in words; empty where they can. @param {Context} context */
export function whyNot({ source, about, trace }) {
  const local = "With regard on your computer, this page computes what each token contributed: regard view";
  if (source.runs?.(PATH(trace)) === false) return `Contributions need a backward pass of the model. ${local}`;
  if (source.holds) return `A file runs no model, and contributions need a backward pass of it. ${local}`;
  if (!trace.made)
    return "Contributions need the model, and this trace holds only what it computed. Open the model with a text: regard view MODEL TEXT";
  if (!about.models.some((model) => model.name === trace.made?.model))
    return `Contributions need the model ${trace.made.model}, which is not installed here`;
  return "";
}

/** “Mary”, or “Mary” less “John”. @param {Answers} answers */
export function answerName({ answers, answer, minus }) {
  const name = (id) => `“${plain(answers.find((one) => one.id === id)?.piece ?? String(id))}”`;
  return minus == null ? name(answer) : `${name(answer)} rather than ${name(minus)}`;
}

/** What is measured, in a sentence, with its value. @param {Answers} answers @param {Trace} trace @param {string} value */
export function answerSentence(answers, trace, value) {
  const name = answerName(answers).replace(" rather than ", " less that to ");
  if (answers.kind !== "similarity") return `The score of ${answerName(answers)} is ${value}.`;
  const place = positionLabels(trace, answers.positions)[answers.position];
  const why = "This model writes nothing, so no answer of its own can be explained.";
  return `${why} Measured is how similar its last vectors of “${place}” and of ${name} are: their cosine is ${value}.`;
}

/** The parameters of a request for contributions. @param {Answers} answers */
export function targetOf({ position, answer, minus }) {
  return { position, answer, ...(minus == null ? {} : { minus }) };
}

/** The labels of the positions that have answers, of a trace. @param {Trace} trace @param {number} count */
export function positionLabels(trace, count) {
  const last = trace.calls[trace.calls.length - 1];
  const tokens = trace.sides[last.query_side] ?? [];
  return Array.from({ length: count }, (_, at) => (tokens[at] == null ? String(at) : plain(tokens[at])));
}
