// The static site as a source of data (source.js): prepared traces from files, models in the browser, no server.
import { LIVE_PATHS, LiveModels } from "../live/live_models.js";
import { FileSource } from "./file_source.js";

/** `base` is the folder of about.json, traces/ and models/; `runtime()` resolves to onnxruntime-web. */
export class SiteSource {
  /** @type {Promise<any> | undefined} */
  starting;
  /** @type {LiveModels} */
  live;

  constructor(base, runtime, progress = (_name, _share) => {}) {
    this.base = base;
    this.runtime = runtime;
    this.progress = progress;
    this.files = new Map(); // trace id → promise of a FileSource
    this.opened = new Map(); // trace id → FileSource
    this.made = new Map(); // trace id → a trace made here
  }

  /** @returns {Promise<any>} */
  async fetched(file) {
    return (await this.response(file)).json();
  }

  /** @returns {Promise<any>} */
  async response(file) {
    const response = await fetch(`${this.base}/${file}`).catch(() => null);
    if (!response?.ok) throw new Error(`${file} did not arrive; reload the page`);
    return response;
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
    if (path === "/api/length" || path === "/api/samples") return this.fetched(`${path.slice(5)}.json`);
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
    const response = await this.response(`inside-${model}.bin`);
    const unpacked = response.body.pipeThrough(new DecompressionStream("gzip"));
    const { text: prepared, answers } = await new Response(unpacked).json();
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
  return {
    query,
    cols: [first, last],
    q,
    k,
    kind: "dot",
    scale,
    product,
    energy,
    modified: energy,
    weight,
    normalizer,
  };
}
