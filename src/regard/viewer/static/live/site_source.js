// The static site as a source of data (data/sources.js): prepared traces from files, models in the browser, no server.
import { FileSource } from "../data/sources.js";
import { pooled } from "../data/tiles.js";
import {
  caption,
  classOf,
  continueText,
  fetched,
  limitOf,
  nextTokens,
  OnnxModel,
  replay,
  search,
  soundClass,
  textClass,
  translation,
} from "./onnx_models.js";
import { END, labelsOf, pixelsOf, samplesOf } from "./preprocessing.js";

/** `base` is the folder of about.json, traces/ and models/; `runtime()` resolves to onnxruntime-web. */
class SiteSource {
  /** @type {Promise<any> | undefined} */
  starting;
  /** @type {LiveModels} */
  live;

  constructor(base, runtime, progress) {
    this.base = base;
    this.runtime = runtime;
    this.progress = progress;
    this.files = new Map(); // trace id → promise of a FileSource
    this.opened = new Map(); // trace id → FileSource
    this.made = new Map(); // trace id → a trace made here
  }

  /** @returns {Promise<any>} */
  async fetched(file) {
    return (await fetched(`${this.base}/${file}`)).json();
  }

  /** What the site holds, and the models that run here. */
  start() {
    this.starting ??= this.fetched("about.json").then((about) => {
      this.live = new LiveModels(about, `${this.base}/models`, this.runtime, this.progress);
      return about;
    });
    return this.starting;
  }

  async get(path, params) {
    const about = await this.start();
    const summaries = [...[...this.made.values()].map((trace) => trace.summary).reverse(), ...about.traces];
    if (path === "/api/about") return { ...about, traces: summaries };
    if (path === "/api/traces") return summaries;
    if (path === "/api/samples") return this.fetched(`${path.slice(5)}.json`);
    const file = await this.file(idOf(path));
    return path.endsWith("/neuron") ? neuronAnswer(file, path, params) : file.get(path, params);
  }

  /** Whether a part of a trace is here; the page asks once the trace has been opened. */
  holds(path) {
    const file = this.opened.get(idOf(path));
    return Boolean(file?.holds(path.endsWith("/neuron") ? `${path}/queries` : path));
  }

  /** Whether a model in the browser answers this for any text; Inside has one text that was prepared. */
  runs(path) {
    return path === "/api/traces" || LIVE_PATHS.includes(path);
  }

  /** @param {string} path @param {QueryParameters} params @returns {Promise<ArrayAnswer>} */
  async array(path, params = {}) {
    const id = idOf(path);
    return (await this.file(id)).array(path, params);
  }

  async post(path, body, signal) {
    await this.start();
    if (path === "/api/inside") return this.inside(body);
    if (path !== "/api/traces") return this.live.post(path, body, signal);
    const trace = await this.live.trace(body, signal);
    this.made.set(trace.id, trace);
    return { id: trace.id };
  }

  /** One layer and head of a model over the text that was prepared. */
  async inside({ model, text, layer = 0, head = 0 }) {
    const response = await fetched(`${this.base}/inside-${model}.bin`);
    const { text: prepared, answers } = await unzipped(response).json();
    const found = text === prepared && answers[`${layer}/${head}`];
    if (!found)
      throw new Error(`Here the view shows “${prepared}”. For a text of your own, install regard and run: regard view`);
    return found;
  }

  /** The answers of one trace, fetched once. */
  file(id) {
    if (!this.files.has(id)) {
      const made = this.made.get(id);
      const opened = made
        ? Promise.resolve(new FileSource({ json: made.json, arrays: {} }, made.arrays))
        : this.known(id)
            .then(() => this.fetched(`traces/${id}.json`))
            .then((held) => new FileSource(held));
      this.files.set(id, opened);
      opened.then((file) => this.opened.set(id, file)).catch(() => this.files.delete(id));
    }
    return this.files.get(id);
  }

  async known(id) {
    const { traces } = await this.start();
    if (!traces.some((trace) => trace.id === id)) throw new Error("this site does not hold that trace; choose another");
  }
}

/** @param {Response} response */
function unzipped(response) {
  return new Response(response.body?.pipeThrough(new DecompressionStream("gzip")));
}

function idOf(path) {
  return decodeURIComponent(path.match(/^\/api\/traces\/([^/]+)/)?.[1] ?? "");
}

/** The Neuron view of one query, from the queries and keys of a call whose energy is a dot product. */
async function neuronAnswer(file, path, { head = 0, query, cols }) {
  const [queries, keys, weights] = await Promise.all([
    file.whole(`${path}/queries`),
    file.whole(`${path}/keys`),
    file.array(path.replace(/neuron$/, "weights"), { entry: 0, heads: head, rows: `${query}:${query + 1}` }),
  ]);
  const [first, last] = String(cols).split(":").map(Number);
  const [, count, width] = keys.shape;
  const vector = ({ data, shape }, at) => [...data.subarray((head * shape[1] + at) * width).subarray(0, width)];
  const { scale, normalizer } = file.held.json[path];
  const q = vector(queries, query);
  const k = Array.from({ length: Math.min(last, count) - first }, (_, j) => vector(keys, first + j));
  const product = k.map((key) => key.map((value, d) => scale * value * q[d]));
  const energy = product.map((terms) => terms.reduce((a, b) => a + b, 0));
  const weight = [...weights.data.subarray(first, last)];
  const found = { q, k, product, energy, modified: energy, weight };
  return { query, cols: [first, last], kind: "dot", scale, normalizer, ...found };
}

// The models that run in the visitor's browser, and the requests of the HTTP API that they answer.

const RATE = 8000; // samples per second of the shipped classifier of sounds

/** The requests that run a model, by path. @type {Record<string, (live: LiveModels, body: any, signal?: AbortSignal) => Promise<any>>} */
const ANSWERS = {
  "/api/translate": async (live, { models, text, beams = 5 }, signal) => ({
    translations: await live.each(models, (model, title) => translation(model, title, text, beams, signal)),
  }),
  "/api/classify": async (live, { models, text }) => ({
    classifications: await live.each(models, (model, title) => textClass(model, title, text)),
  }),
  "/api/caption": (live, file, signal) => live.captionOf(file, signal),
  "/api/listen": async (live, file) => soundClass(await live.first("listen"), await samplesOf(file, RATE), RATE),
  "/api/next": async (live, { model, text, temperature = 1 }) => ({
    next: await nextTokens(await live.model(model), text, temperature),
  }),
};
const LIVE_PATHS = Object.keys(ANSWERS);

/** Models by name; each is fetched when it is first needed. */
class LiveModels {
  /** `base` is the folder of the models; `runtime()` resolves to onnxruntime-web; `progress(name, share)` is told. */
  constructor(about, base, runtime, progress) {
    this.about = about;
    this.models = new Map(
      about.models.map(({ name }) => [
        name,
        new OnnxModel(name, `${base}/${name}`, runtime, (received, size) => progress(name, received / size)),
      ]),
    );
    /** @type {Promise<any>} */
    this.last = Promise.resolve();
  }

  title(name) {
    const model = this.about.models.find((one) => one.name === name);
    if (!model) throw new Error(`there is no model ${name} here`);
    return model.title;
  }

  /** The model of this name, fetched. */
  async model(name) {
    this.title(name);
    return this.models.get(name).ready();
  }

  async first(task) {
    const found = this.about.models.find((model) => model.task === task);
    if (!found) throw new Error(`there is no model for this here: ${task}`);
    return this.model(found.name);
  }

  /** The answer to a POST; one after the other, as on a server. */
  post(path, body, signal) {
    const answer = this.last.then(() => {
      if (signal?.aborted) throw new DOMException("cancelled", "AbortError");
      return this.answer(path, body, signal);
    });
    this.last = answer.catch(() => {});
    return answer;
  }

  async answer(path, body, signal) {
    if (!Object.hasOwn(ANSWERS, path))
      throw new Error("This page runs without a server, and cannot do that. Install regard and run: regard view");
    return ANSWERS[path](this, body, signal);
  }

  async each(models, run) {
    const answers = [];
    for (const name of new Set(models)) answers.push(await run(await this.model(name), this.title(name)));
    return answers;
  }

  async captionOf(blob, signal) {
    const model = await this.first("caption");
    const { pixels, width, height } = await pixelsOf(blob, model.about.picture);
    const answer = await caption(model, this.title(model.name), pixels, signal);
    return { ...answer, picture: URL.createObjectURL(blob), proportions: [width, height] };
  }

  /** A trace of a model over a text: {id, summary, json, arrays}. */
  async trace({ model: name, text, generate = 0 }, signal) {
    const [model, title] = [await this.model(name), this.title(name)];
    const { task } = model.about;
    if (task === "translate") return translationTrace(model, title, text, signal);
    if (task === "classify") return classificationTrace(model, title, text);
    return generationTrace(model, title, text, generate, signal);
  }
}

// A trace made in the browser: what a model attended to while it translated or continued a text, in the form of the API.

const THUMBNAIL = 32; // cells along a side

/** Greedy translation, watched: the encoder's attention, the decoder's own, and its attention over the source. */
async function translationTrace(model, title, text, signal) {
  const ids = [...model.source.encode(text), END];
  const begun = await model.start(ids, [1, ids.length]);
  const found = await search(model, begun, { limit: limitOf(model, ids.length), beams: 1, signal });
  const steps = await replay(model, begun, found.tokens);
  const target = model.target.pieces([...found.tokens, END]);
  const sides = {
    source: labelsOf(model.source.pieces(ids)),
    target: labelsOf(target),
    read: labelsOf(["<s>", ...target.slice(0, -1)]),
  };
  const { layers } = model.about;
  const calls = [];
  const encoder = begun.encoded.encoder_weights;
  for (let layer = 0; encoder && layer < layers.encoder; layer++) {
    const heads = encoder.dims[1] / layers.encoder;
    const size = heads * ids.length * ids.length;
    const weights = encoder.data.slice(layer * size, (layer + 1) * size);
    const name = `encoder.layers.${layer}.attention`;
    calls.push({ name, layer, kind: "self", heads, query_side: "source", key_side: "source", weights });
  }
  for (let layer = 0; layer < layers.decoder; layer++)
    for (const [kind, part, key_side] of [
      ["self", "self_weights", "read"],
      ["cross", "weights", "source"],
    ]) {
      if (!steps[0][part]) continue;
      const name = layers.decoder > 1 || kind === "self" ? `decoder.layers.${layer}.${kind}` : "decoder";
      const looked = stacked(model, steps, part, layer, sides[key_side].tokens.length);
      calls.push({ name, layer, kind, query_side: "target", key_side, ...looked });
    }
  return finished(model, title, text, sides, calls, 0, 0);
}

/** A text and its label: how the classifier pooled the tokens. */
async function classificationTrace(model, title, text) {
  const ids = [...model.source.encode(text), END];
  const result = await model.classify(ids, [1, ids.length]);
  if (!result.weights) throw new Error(`${title} gives no word a weight of its own`);
  const sides = { source: labelsOf(model.source.pieces(ids)), target: labelsOf([classOf(model, result).label]) };
  const about = { name: "pooling", layer: 0, kind: "cross", heads: 1, query_side: "target", key_side: "source" };
  const call = { ...about, weights: result.weights.data.slice() };
  return finished(model, title, text, sides, [call], 0, 0);
}

/** The likeliest continuation of a prompt, watched. */
async function generationTrace(model, title, text, count, signal) {
  const prompt = model.target.continued(text);
  const unknown = [...text].find((symbol) => model.target.continued(symbol).includes(3));
  if (unknown) throw new Error(`this model does not know ${JSON.stringify(unknown)}; leave it out`);
  if (!prompt.length) throw new Error("the prompt holds no character of this model's vocabulary");
  if (prompt.length > model.about.longest)
    throw new Error(`the prompt has ${prompt.length} characters; this model reads ${model.about.longest} at most`);
  const { read, steps } = await continueText(model, prompt, count, signal);
  const written = read.slice(prompt.length).map((id) => model.target.running([id]));
  const sides = { text: labelsOf([...model.target.pieces(prompt), ...written]) };
  const calls = Array.from({ length: model.about.layers.decoder }, (_, layer) => ({
    ...{ name: `decoder.layers.${layer}.attention`, layer, kind: "self", query_side: "text", key_side: "text" },
    ...stacked(model, steps, "self_weights", layer, read.length),
  }));
  return finished(model, title, text, sides, calls, prompt.length, count);
}

/** What one layer of a decoder looked at, step by step: rows [1, maps of all layers, keys so far] as one [heads, queries, keys];
 * what lies ahead is 0.
 */
function stacked(model, steps, part, layer, keys) {
  const heads = steps[0][part].dims[1] / model.about.layers.decoder;
  const weights = new Float32Array(heads * steps.length * keys);
  steps.forEach((step, at) => {
    const { data, dims } = step[part];
    const width = dims[2];
    for (let head = 0; head < heads; head++) {
      const from = (layer * heads + head) * width;
      weights.set(data.subarray(from, from + width), (head * steps.length + at) * keys);
    }
  });
  return { heads, weights };
}

/** A call as the API describes it, beside its weights. */
function described({ weights, ...call }, at, sides) {
  const [queries, keys] = [call.query_side, call.key_side].map((side) => sides[side].tokens.length);
  const word = "computed in this browser, not checked against the output";
  const fidelity = { error: null, budget: null, kept: null, word };
  return { about: { ...call, id: String(at), queries, keys, steps: [queries], origin: "onnx", fidelity }, weights };
}

/** {id, summary, json, arrays}: answers by path and parameters, as a single file holds them. */
function finished(model, title, text, sides, made, prompt, generate) {
  const calls = made.map((call, at) => described(call, at, sides));
  const id = `live-${Math.abs(hash(`${model.name}\n${text}\n${prompt}\n${calls[0].about.queries}`)).toString(16)}`;
  const root = `/api/traces/${id}`;
  const part = (name) => Object.fromEntries(Object.entries(sides).map(([side, labels]) => [side, labels[name]]));
  const summary = {
    id,
    title: `${title.split(",")[0]} · ${text.slice(0, 60)}`,
    model: model.name,
    tokens: Math.max(...calls.flatMap(({ about }) => [about.queries, about.keys])),
    calls: calls.length,
    faithful: null,
  };
  const trace = {
    ...summary,
    batch: 1,
    sides: part("tokens"),
    side_words: part("words"),
    side_special: part("special"),
    prompt,
    made: { model: model.name, text, second: null, generate },
    calls: calls.map(({ about }) => about),
  };
  const none = { heads: [], thresholds: {}, why: "patterns are computed by regard itself, not in the browser" };
  const json = {
    [root]: trace,
    [`${root}/stats?entry=0`]: { calls: calls.map((call) => statistics(call, prompt)) },
    [`${root}/patterns?entry=0`]: none,
  };
  /** @type {Record<string, ArrayAnswer>} */
  const arrays = {};
  for (const { about, weights } of calls)
    arrays[`${root}/calls/${about.id}/weights?entry=0`] = {
      data: weights,
      shape: [about.heads, about.queries, about.keys],
    };
  arrays[`${root}/thumbs?entry=0&pool=max&size=${THUMBNAIL}`] = thumbnails(calls);
  return { id, summary, json, arrays };
}

function hash(text) {
  let value = 0;
  for (const symbol of text) value = (value * 31 + (symbol.codePointAt(0) ?? 0)) | 0;
  return value;
}

/** For every head: mean entropy, mean largest weight, mean weight on the first key and on the prompt. */
function statistics({ about, weights }, prompt) {
  const { heads, queries, keys } = about;
  /** @type {Record<string, number[]>} */
  const found = { entropy: [], confidence: [], sink: [], prompt: [] };
  for (let head = 0; head < heads; head++) {
    const sums = { entropy: 0, confidence: 0, sink: 0, prompt: 0 };
    for (let i = 0; i < queries; i++) {
      const row = weights.subarray((head * queries + i) * keys, (head * queries + i + 1) * keys);
      row.forEach((w, j) => {
        if (w > 0) sums.entropy -= w * Math.log(w);
        if (i >= prompt && j < prompt) sums.prompt += w;
      });
      sums.confidence += Math.max(...row);
      sums.sink += row[0];
    }
    for (const name of ["entropy", "confidence", "sink"]) found[name].push(sums[name] / queries);
    found.prompt.push(sums.prompt / Math.max(1, queries - prompt));
  }
  const { prompt: shares, ...rest } = found;
  const own = prompt && prompt < queries ? { prompt: shares } : {};
  return { id: about.id, rows: queries, of: queries, ...rest, ...own };
}

/** Every head of every call as a small map: 255·√(w / peak), and the peaks. */
function thumbnails(calls) {
  const maps = calls.flatMap(({ about: { heads, queries, keys }, weights }) =>
    Array.from({ length: heads }, (_, head) => {
      const rowAt = (i) => weights.subarray((head * queries + i) * keys, (head * queries + i + 1) * keys);
      const [height, width] = [queries, keys].map((n) => Math.min(n, THUMBNAIL));
      const whole = { top: 0, left: 0, bottom: queries, right: keys };
      const cells = pooled(rowAt, queries, keys, { ...whole, height, width });
      const at = (cell, n) => Math.floor((cell * n) / THUMBNAIL); // with fewer tokens than cells they are repeated
      return Float32Array.from(
        { length: THUMBNAIL * THUMBNAIL },
        (_, cell) => cells[at(Math.floor(cell / THUMBNAIL), height) * width + at(cell % THUMBNAIL, width)],
      );
    }),
  );
  const peaks = maps.map((map) => Math.max(...map));
  const data = new Uint8Array(maps.length * THUMBNAIL * THUMBNAIL);
  maps.forEach((map, at) => {
    map.forEach((w, cell) => (data[at * map.length + cell] = Math.round(255 * Math.sqrt(w / (peaks[at] || 1)))));
  });
  return { data, shape: [maps.length, THUMBNAIL, THUMBNAIL], peaks };
}

/** The source of the site's page, with onnxruntime-web from beside it, fetched once for all models. */
export function siteSource() {
  const load = async () => {
    const ort = await import(new URL("ort/ort.wasm.bundle.min.mjs", document.baseURI).href);
    ort.env.wasm.numThreads = 1; // several need headers that a static host does not send
    ort.env.wasm.wasmBinary = await unzipped(await fetched("ort/ort-wasm.bin")).arrayBuffer();
    return ort;
  };
  let loading = null;
  const runtime = () =>
    (loading ??= load().catch((error) => {
      loading = null; // the next model tries again
      throw error;
    }));
  const status = /** @type {HTMLElement} */ (document.getElementById("loading"));
  const progress = (name, share) => {
    status.textContent = share < 1 ? `Loading ${name}: ${Math.round(100 * share)} %` : "";
  };
  return new SiteSource("data", runtime, progress);
}
