// Models as `regard export --to onnx` wrote them, run by onnxruntime-web; beam search over one sentence.
import { BEGIN, END, labelsOf, Tokenizer, UNKNOWN } from "./preprocessing.js";

/** A file of the site. @param {string} address */
export async function fetched(address) {
  const response = await fetch(address).catch(() => null);
  if (!response?.ok) throw new Error(`${address} did not arrive; reload the page`);
  return response;
}

/** A model of the site: its description, tokenizers and graphs. `runtime()` resolves to the module onnxruntime-web. */
export class OnnxModel {
  /** @type {Promise<OnnxModel> | null} */
  opening = null;
  /** @type {any} */
  ort;
  /** @type {any} */
  about;
  /** @type {any} */
  graphs;
  /** @type {Tokenizer | null} */
  source = null;
  /** @type {Tokenizer | null} */
  target = null;
  /** @type {string[] | null} */
  labels = null;

  constructor(name, base, runtime, progress) {
    this.name = name;
    this.base = base;
    this.runtime = runtime;
    this.progress = progress;
    this.received = 0;
  }

  /** Fetch everything; a second call waits for the first. */
  ready() {
    this.opening ??= this.open().catch((error) => {
      this.opening = null; // the next call may try again
      throw error;
    });
    return this.opening;
  }

  async open() {
    const ort = await this.runtime();
    this.ort = ort;
    const about = await this.json("onnx.json");
    this.about = about;
    const optional = async (name) => (about.files.includes(name) ? this.json(name) : null);
    const [shared, source, target] = await Promise.all(
      ["tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"].map(optional),
    );
    this.source = shared || source ? new Tokenizer(shared ?? source) : null;
    this.target = shared || target ? new Tokenizer(shared ?? target) : null;
    this.labels = await optional("labels.json");
    this.graphs = {};
    for (const name of ["encoder", "decoder", "classifier"].filter((one) => about.files.includes(`${one}.onnx`)))
      this.graphs[name] = await ort.InferenceSession.create(await this.bytes(`${name}.onnx`), {
        executionProviders: ["wasm"],
        logSeverityLevel: 3,
      });
    this.progress(1, 1);
    return this;
  }

  async json(file) {
    return (await fetched(`${this.base}/${file}`)).json();
  }

  /** A graph, with word of how much of the model has arrived. */
  async bytes(file) {
    const reader = (await fetched(`${this.base}/${file}`)).body?.getReader();
    const parts = [];
    for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
      parts.push(part.value);
      this.received += part.value.length;
      this.progress(this.received, this.about.size);
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }

  floats(data, dims) {
    return new this.ort.Tensor("float32", Float32Array.from(data), dims);
  }

  integers(numbers, dims = [numbers.length]) {
    return new this.ort.Tensor("int64", BigInt64Array.from(numbers, BigInt), dims);
  }

  /** `source` and `lengths` of one text, sound or picture. */
  feeds(source, dims) {
    const { reads } = this.about;
    return {
      source: reads === "text" ? this.integers(source, dims) : this.floats(source, dims),
      lengths: this.integers([reads === "picture" ? source.length : dims[1]]),
    };
  }

  /** A classifier's logits, places and weights. */
  async classify(source, dims) {
    return this.graphs.classifier.run(this.feeds(source, dims));
  }

  /** The state before the first token, and what stays the same: {memory, state, encoded}. */
  async start(source = null, dims = []) {
    const encoded = source ? await this.graphs.encoder.run(this.feeds(source, dims)) : {};
    const part = (kind) => Object.fromEntries(Object.entries(encoded).filter(([name]) => name.startsWith(`${kind}.`)));
    if (source) return { memory: part("memory"), state: part("state"), encoded };
    const state = Object.fromEntries(
      Object.entries(this.about.state).map(([name, { shape }]) => {
        const sizes = shape.map((size) => (size === "rows" ? 1 : size === "steps" ? 0 : size));
        return [`state.${name}`, this.floats(Array(sizes.reduce((a, b) => a * b, 1)).fill(0), sizes)];
      }),
    );
    return { memory: {}, state, encoded };
  }

  /** One step of every row: {logits, state, weights, self_weights}, of which the last two may be missing. */
  async step(tokens, memory, state) {
    const results = await this.graphs.decoder.run({ token: this.integers(tokens), ...memory, ...state });
    const next = Object.entries(results).filter(([name]) => name.startsWith("next."));
    return {
      logits: results.logits,
      weights: results.weights,
      self_weights: results.self_weights,
      state: Object.fromEntries(next.map(([name, value]) => [name.replace("next.", "state."), value])),
    };
  }

  /** Row i of the new state is row rows[i] of this one. */
  rows(state, rows) {
    return Object.fromEntries(
      Object.entries(state).map(([name, tensor]) => {
        const size = tensor.data.length / tensor.dims[0];
        const data = new tensor.data.constructor(rows.length * size);
        rows.forEach((row, at) => data.set(tensor.data.subarray(row * size, (row + 1) * size), at * size));
        return [name, new this.ort.Tensor(tensor.type, data, [rows.length, ...tensor.dims.slice(1)])];
      }),
    );
  }
}

function logSoftmax(logits) {
  let most = -Infinity;
  for (const value of logits) most = Math.max(most, value);
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - most);
  const shift = most + Math.log(sum);
  return Float64Array.from(logits, (value) => value - shift);
}

/** The `count` largest, largest first, as [index, value]. */
export function largest(values, count) {
  /** @type {[number, number][]} */
  const best = [];
  values.forEach((value, at) => {
    if (best.length === count && !(value > best[count - 1][1])) return;
    let place = best.length;
    while (place > 0 && value > best[place - 1][1]) place--;
    best.splice(place, 0, [at, value]);
    if (best.length > count) best.pop();
  });
  return best;
}

// What models make of a text, in the form of the HTTP API (viewer/model_routes.py).

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
function meanMap({ data, dims: [, maps, places] }) {
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

// Beam search over one sentence, as decoding/beam.py: the same hypotheses, scores and order.

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

/** The likeliest tokens after a prompt, one by one: {read, steps}; <unk> is never written. */
export async function continueText(model, prompt, count, /** @type {AbortSignal | null} */ signal = null) {
  let { state, memory } = await model.start();
  const steps = /** @type {any[]} */ ([]);
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
    if (read.length - prompt.length < count && read.length < model.about.longest) read.push(token);
  }
  return { read, steps };
}
