// Beam search over one sentence, as decoding/beam_search.py: the same hypotheses, scores and order.

import { largest, logSoftmax } from "./onnx_model.js";
import { BEGIN, END, UNKNOWN } from "./tokenizer.js";

const LONGEST = 256; // tokens of a hypothesis
const NEVER = -Infinity;

/** How many tokens the translation of so many places may have before </s>. */
export function limitOf(model, places) {
  const most = Math.min(2 * places + 10, LONGEST);
  return model.about.most_steps == null ? most : Math.min(most, model.about.most_steps - 1);
}

/** log p / lp, lp = ((5 + |y|) / 6)^α (Wu et al. 2016). */
function score(logprob, length, penalty) {
  return logprob / ((5 + length) / 6) ** penalty;
}

/** The best hypothesis {tokens, score, logprob}, </s> left out, and `history`: the beam after every step.
 *
 * @param {any} model @param {any} begun
 * @param {{limit: number, beams: number, penalty?: number, signal?: AbortSignal | null}} options
 */
export async function search(model, { memory, state }, { limit, beams, penalty = 1, signal = null }) {
  let rows = [{ tokens: /** @type {number[]} */ ([]), logprob: 0 }];
  let [free, best] = [beams, { tokens: /** @type {number[]} */ ([]), score: NEVER, logprob: NEVER }];
  const history = [];
  for (let at = 0; at <= limit && rows.length; at++) {
    if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
    const last = rows.map((row) => row.tokens.at(-1) ?? BEGIN);
    const step = await model.step(last, memory, state);
    const choices = rows.flatMap((row, parent) =>
      extensions(step.logits, parent, beams, at >= limit).map(([token, value]) => ({
        parent,
        tokens: [...row.tokens, token],
        logprob: row.logprob + value,
      })),
    );
    const order = largest(
      choices.map((choice) => choice.logprob),
      free,
    ).filter(([, value]) => value > NEVER);
    const kept = order.map(([index]) => ({ ...choices[index], score: score(choices[index].logprob, at + 1, penalty) }));
    history.push(kept.map(({ tokens, score }) => ({ tokens, score })));
    const ended = kept.filter(({ tokens }) => tokens.at(-1) === END);
    for (const one of ended) if (one.score > best.score) best = { ...one, tokens: one.tokens.slice(0, -1) };
    free -= ended.length;
    const alive = kept.filter(({ tokens }) => tokens.at(-1) !== END);
    if (!alive.length || best.score >= score(alive[0].logprob, limit + 1, penalty)) break;
    rows = alive;
    state = model.rows(
      step.state,
      alive.map(({ parent }) => parent),
    );
  }
  return { ...best, history };
}

/** The likeliest next tokens of a row; at the limit it can only end. */
function extensions(logits, row, count, last) {
  const size = logits.dims[1];
  const logprobs = logSoftmax(logits.data.subarray(row * size, (row + 1) * size));
  if (last) return /** @type {[number, number][]} */ ([[END, logprobs[END]]]);
  logprobs.fill(NEVER, 0, END); // <pad> and <s> are no words
  return largest(logprobs, count);
}

/** Every step of one hypothesis again: log-probabilities, and weights over the source and over the tokens so far. */
export async function replay(model, { memory, state }, tokens) {
  const steps = [];
  for (const token of [BEGIN, ...tokens]) {
    const step = await model.step([token], memory, state);
    state = step.state;
    steps.push({ logprobs: logSoftmax(step.logits.data), weights: step.weights, self_weights: step.self_weights });
  }
  return steps;
}

/** The likeliest tokens after a prompt, one by one: {read, written, steps}; <unk> is never written. */
export async function continueText(model, prompt, count, /** @type {AbortSignal | null} */ signal = null) {
  let { state, memory } = await model.start();
  const [steps, written] = [/** @type {any[]} */ ([]), /** @type {number[]} */ ([])];
  const read = [...prompt];
  for (let at = 0; at < read.length; at++) {
    if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
    const step = await model.step([read[at]], memory, state);
    state = step.state;
    steps.push({ logprobs: logSoftmax(step.logits.data), self_weights: step.self_weights });
    if (at < prompt.length - 1) continue;
    const logprobs = steps[at].logprobs.slice();
    logprobs.fill(NEVER, 0, END);
    logprobs[UNKNOWN] = NEVER; // it has no text
    const [[token]] = largest(logprobs, 1);
    if (token === END) break;
    written.push(token);
    if (written.length <= count && read.length < model.about.longest) read.push(token); // the last is not read
  }
  return { read, written, steps };
}
