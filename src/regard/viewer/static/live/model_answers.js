// What models make of a text, in the form of the HTTP API (viewer/data/model_outputs.py).

import { continueText, limitOf, replay, search } from "./beam_search.js";
import { largest, logSoftmax } from "./onnx_model.js";
import { END, labelsOf } from "./tokenizer.js";

const ALTERNATIVES = 8; // likeliest next tokens that are listed for each step

/** A translation, its weights, and for each step the alternatives and the beam. */
export async function translation(model, title, text, beams, signal) {
  const ids = [...model.source.encode(text), END];
  const begun = await model.start(ids, [1, ids.length]);
  const found = await search(model, begun, { limit: limitOf(model, ids.length), beams, signal });
  const steps = await replay(model, begun, found.tokens);
  const [source, target] = [ids, [...found.tokens, END]].map((tokens, side) =>
    labelsOf((side ? model.target : model.source).pieces(tokens)),
  );
  const maps = steps[0].weights?.dims[1] ?? 0;
  return {
    model: model.name,
    title,
    translation: model.target.decode(found.tokens),
    score: found.score,
    logprob: found.logprob,
    source: source.tokens,
    source_words: source.words,
    target: target.tokens,
    target_words: target.words,
    maps,
    weights: maps ? steps.map((step) => meanMap(step.weights)) : null,
    fidelity: null,
    generation: null,
    steps: steps.map(({ logprobs }, at) => ({
      prefix: model.target.decode(found.tokens.slice(0, at)),
      alternatives: largest(logprobs, ALTERNATIVES).map(([id, value]) => ({
        piece: model.target.names[id],
        logprob: value,
      })),
      beam: (found.history[at] ?? []).map(({ tokens, score }) => ({
        text: model.target.decode(tokens),
        score,
        ended: tokens.at(-1) === END,
      })),
    })),
  };
}

/** The mean of [1, maps, places] over its maps. */
export function meanMap({ data, dims: [, maps, places] }) {
  return Array.from({ length: places }, (_, at) => {
    let sum = 0;
    for (let map = 0; map < maps; map++) sum += data[map * places + at];
    return sum / maps;
  });
}

/** The label of a text and the weight of every token, with its TF-IDF weight. */
export async function textClass(model, title, text) {
  const ids = [...model.source.encode(text), END];
  const result = await model.classify(ids, [1, ids.length]);
  return {
    model: model.name,
    title,
    ...classOf(model, result),
    words: model.source.pieces(ids),
    weights: result.weights ? [...result.weights.data] : null,
    static: result.static ? [...result.static.data] : null,
    contributions: null, // they need a backward pass
  };
}

/** {label, probabilities}, the likeliest first. */
export function classOf(model, { logits }) {
  const probabilities = logSoftmax(logits.data).map(Math.exp);
  const order = largest(probabilities, probabilities.length);
  return {
    label: model.labels[order[0][0]],
    probabilities: Object.fromEntries(order.map(([at, share]) => [model.labels[at], share])),
  };
}

/** The caption of a picture's pixels, and for each word the weights over the grid of cells. */
export async function caption(model, title, pixels, signal) {
  const side = Math.sqrt(pixels.length / 3);
  const begun = await model.start(pixels, [1, side, side, 3]);
  const places = begun.memory["memory.values"].dims[1];
  const found = await search(model, begun, { limit: limitOf(model, places), beams: 5, signal });
  const steps = await replay(model, begun, found.tokens);
  const grid = Math.round(Math.sqrt(places));
  return {
    model: model.name,
    title,
    text: model.target.decode(found.tokens),
    words: model.target.pieces(found.tokens),
    grid: [grid, grid],
    weights: found.tokens.map((_, at) => meanMap(steps[at].weights)),
    remarks: [],
  };
}

/** The likeliest next tokens after a text: p = softmax(logits / temperature). */
export async function nextTokens(model, text, temperature) {
  const ids = model.target.continued(text || "\n").slice(-model.about.longest);
  const { steps } = await continueText(model, ids, 0);
  const scaled = logSoftmax(steps.at(-1).logprobs.map((value) => value / temperature));
  return largest(scaled, ALTERNATIVES).map(([id, value]) => ({
    piece: model.target.names[id],
    share: Math.exp(value),
  }));
}

/** What a classifier of sounds makes of samples: {seconds, waveform, label, probabilities, weights}. */
export async function soundClass(model, samples, rate) {
  const result = await model.classify(samples, [1, samples.length]);
  const places = Number(result.places.data[0]);
  return {
    seconds: samples.length / rate,
    waveform: envelope(samples),
    ...classOf(model, result),
    weights: [...result.weights.data.subarray(0, places)],
  };
}

const POINTS = 800;

/** The smallest and the largest sample of each interval of time. */
function envelope(samples) {
  const edge = (at) => Math.floor((at * samples.length) / POINTS);
  return Array.from({ length: POINTS }, (_, at) => samples.subarray(edge(at), edge(at + 1)))
    .filter((part) => part.length)
    .map((part) => [Math.min(...part) / 32768, Math.max(...part) / 32768]);
}
