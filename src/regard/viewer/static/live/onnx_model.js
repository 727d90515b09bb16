// One model as `regard export --to onnx` wrote it, run by onnxruntime-web.

import { Tokenizer } from "./tokenizer.js";

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

  constructor(name, base, runtime, progress = (_received, _size) => {}) {
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
    return (await this.fetched(file)).json();
  }

  async fetched(file) {
    const response = await fetch(`${this.base}/${file}`).catch(() => null);
    if (!response?.ok) throw new Error(`${this.name} could not be loaded: ${file} did not arrive; reload the page`);
    return response;
  }

  /** A graph, with word of how much of the model has arrived. */
  async bytes(file) {
    const reader = (await this.fetched(file)).body?.getReader();
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

  integers(numbers) {
    return new this.ort.Tensor(
      "int64",
      BigInt64Array.from(numbers, (n) => BigInt(n)),
      [numbers.length],
    );
  }

  /** `source` and `lengths` of one text, sound or picture. */
  feeds(source, dims) {
    const length = this.integers([this.about.reads === "picture" ? source.length : dims[1]]);
    const ids = this.about.reads === "text";
    const tensor = ids
      ? new this.ort.Tensor(
          "int64",
          BigInt64Array.from(source, (n) => BigInt(n)),
          dims,
        )
      : this.floats(source, dims);
    return { source: tensor, lengths: length };
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

export function logSoftmax(logits) {
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
