// Where the page gets its data: a server, a notebook's kernel, or the file the page is in. All answer alike:
//
//   await source.get(path, params, signal)    → JSON
//   await source.array(path, params, signal)  → {data, shape, type, peaks, computed, note}: `data` a Float32Array, or a
//       Uint8Array for "uint8"; `computed` is below 1 while a part is still to come, `note` says what is not all there is
//   await source.post(path, body, signal)     → JSON; `body` is an object, or a Blob
//
// Paths are those of the HTTP API, "/api/traces/…". What goes wrong is an Error whose message says what to do. A server
// that has too much to do (503) is asked again by the source itself, a few times, before that is an Error.
import { pooled } from "./tiles.js";

export const LATER = 5000; // milliseconds until a view may ask again for what failed

/** One request at a time: `ask(run)` ends the one before. It resolves to what `run(signal)` gives, to undefined where that
 * was ended meanwhile; `ask.end()` ends it.
 */
export function latest() {
  let control = new AbortController();
  const ask = async (run) => {
    control.abort();
    control = new AbortController();
    const { signal } = control;
    try {
      const found = await run(signal);
      if (!signal.aborted) return found;
    } catch (error) {
      if (!signal.aborted && error.name !== "AbortError") throw error;
    }
  };
  return Object.assign(ask, { end: () => control.abort() });
}

/** What is asked for piece by piece: `fetch(key, signal)` gives one, `arrived()` is called when it is here. At most `most` are
 * kept, those longest unused go first; one that `failed(error)` is asked for again when somebody looks at it later.
 */
export class Pieces {
  constructor(fetch, { arrived, failed, most = Infinity }) {
    this.fetch = fetch;
    this.arrived = arrived;
    this.failed = failed;
    this.most = most;
    this.kept = new Map(); // key → the piece; null while it is on its way, or failed
    this.ending = new AbortController();
  }

  /** A piece; null while it is fetched. */
  get(key) {
    const piece = this.kept.get(key);
    if (piece === undefined) this.load(key);
    if (!piece) return null;
    this.kept.delete(key);
    this.kept.set(key, piece); // used last
    return piece;
  }

  async load(key) {
    this.kept.set(key, null);
    const { signal } = this.ending;
    try {
      const piece = await this.fetch(key, signal);
      if (signal.aborted) return;
      this.kept.set(key, piece);
      for (const [old, found] of this.kept) if (found && this.kept.size > this.most) this.kept.delete(old);
      this.arrived();
    } catch (error) {
      if (signal.aborted) return;
      setTimeout(() => signal.aborted || this.kept.delete(key), LATER);
      this.failed(error);
    }
  }

  /** Ends what is under way, and forgets what is here. */
  close() {
    this.ending.abort();
    this.kept.clear();
    this.ending = new AbortController();
  }
}

/** "/api/x" and {b: 1, a: [0, 3]} → "/api/x?a=0,3&b=1": one name for one question. */
export function keyOf(path, params = {}) {
  const parts = Object.entries(params ?? {})
    .filter(([, value]) => value != null)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => `${key}=${encodeURIComponent(String(value)).replace(/%(2C|3A)/g, decodeURIComponent)}`);
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

/** The numbers of an answer: bytes, or floats as Float32. */
export function decoded(buffer, type) {
  if (type === "uint8") return new Uint8Array(buffer);
  if (type === "float16") return halves(new Uint16Array(buffer));
  return new Float32Array(buffer);
}

/** Float16 → Float32. Not every browser has Float16Array. */
function halves(bits) {
  return Float32Array.from(bits, (bits) => {
    const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
  });
}

const PAUSES = [250, 500, 1000, 2000, 4000]; // milliseconds before a busy server is asked again

export class HttpSource {
  async get(path, params, signal) {
    return (await this.answer(path, params, { signal })).json();
  }

  async array(path, params, signal) {
    const answer = await this.answer(path, params, { signal });
    const [shape, type] = [numbers(answer.headers.get("X-Shape")), answer.headers.get("X-Type")];
    const data = decoded(await answer.arrayBuffer(), type);
    const computed = Number(answer.headers.get("X-Computed") ?? 1);
    const note = answer.headers.get("X-Note") ?? "";
    return { data, shape, type, peaks: numbers(answer.headers.get("X-Peaks")), computed, note };
  }

  async post(path, body, signal) {
    const blob = body instanceof Blob;
    const headers = { "Content-Type": blob ? body.type || "application/octet-stream" : "application/json" };
    const options = { method: "POST", headers, body: blob ? body : JSON.stringify(body), signal };
    return (await this.answer(path, {}, options)).json();
  }

  async answer(path, params, options) {
    for (let tries = 0; ; tries++) {
      let response;
      try {
        response = await fetch(keyOf(path, params), options);
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Error(
          "the server does not answer: was `regard view` stopped? Start it again, and open the address that it prints",
        );
      }
      if (response.ok) return response;
      if (response.status !== 503 || tries >= PAUSES.length) throw new Error(await reason(response));
      await new Promise((resume) => setTimeout(resume, PAUSES[tries])); // an aborted signal ends the next fetch at once
    }
  }
}

function numbers(text) {
  return text ? text.split(",").map(Number) : [];
}

async function reason(response) {
  try {
    return (await response.json()).error ?? `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status}`;
  }
}

const ELSEWHERE = "for all of it: seen.save(folder), then regard view folder";

/** The file the page is in: `held` is {json: {key: value}, arrays: {key: {shape, type, peaks, data}}}, and `unpacked` has
 * arrays that need no unpacking, such as those a model computed in the browser.
 *
 * A key is the path and its parameters in order of the alphabet; `data` is base64 of gzip. Under
 * ".../calls/{c}/weights?entry=0" lies every head of a call whole, and any part of it is cut from there.
 */
export class FileSource {
  constructor(held, unpacked = {}) {
    this.held = held;
    for (const value of Object.values(held.json)) sayWhenProved(value);
    this.unpacked = new Map(Object.entries(unpacked));
    this.paths = new Set(
      [...Object.keys(held.json), ...Object.keys(held.arrays), ...this.unpacked.keys()].map((key) => key.split("?")[0]),
    );
  }

  /** Whether anything under a path is here; a server and a kernel can answer all of them. */
  holds(path) {
    return this.paths.has(path);
  }

  async get(path, params) {
    const key = keyOf(path, params);
    if (!(key in this.held.json)) throw new Error(`this file does not hold that; ${ELSEWHERE}`);
    return this.held.json[key];
  }

  /** @param {string} path @param {QueryParameters} params @returns {Promise<ArrayAnswer>} */
  async array(path, params = {}) {
    const key = keyOf(path, params);
    if (this.has(key)) return this.whole(key);
    const entry = params.entry ?? 0;
    const call = path.replace(/\/(weights|tile)$/, "/weights");
    const all = keyOf(call, { entry });
    if (call === path.replace("/tile", "/weights") && this.has(all)) {
      const found = await this.whole(all);
      return path.endsWith("/tile") ? tile(found, params) : part(found, params);
    }
    throw new Error(`this file holds a long text as maps of so many cells, no finer; ${ELSEWHERE}`);
  }

  /** Whether a request that runs a model can be answered: a file has none. */
  runs = () => false;

  async post() {
    throw new Error(`a file cannot run a model; ${ELSEWHERE}`);
  }

  has(key) {
    return key in this.held.arrays || this.unpacked.has(key);
  }

  async whole(key) {
    if (!this.unpacked.has(key)) this.unpacked.set(key, unpack(this.held.arrays[key]));
    return this.unpacked.get(key);
  }
}

/** Proofs were made when the file was written: it holds no values to make them again. */
function sayWhenProved(value) {
  for (const call of Array.isArray(value?.calls) ? value.calls : [])
    if (call.fidelity?.kept) call.fidelity.word = "when this file was written";
}

async function unpack({ shape, type, peaks, note = "", data }) {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return { data: decoded(await new Response(stream).arrayBuffer(), type), shape, type, peaks, note };
}

/** Some heads, rows and columns of [heads, rows, columns]. */
function part({ data, shape }, /** @type {QueryParameters} */ { heads, rows, cols }) {
  const [, height, width] = shape;
  const chosen = heads == null ? Array.from({ length: shape[0] }, (_, i) => i) : String(heads).split(",").map(Number);
  const [top, bottom] = span(rows, height);
  const [left, right] = span(cols, width);
  const out = new Float32Array(chosen.length * (bottom - top) * (right - left));
  let at = 0;
  for (const head of chosen)
    for (let i = top; i < bottom; i++) {
      const start = (head * height + i) * width;
      out.set(data.subarray(start + left, start + right), at);
      at += right - left;
    }
  return { data: out, shape: [chosen.length, bottom - top, right - left] };
}

/** A rectangle of one head, pooled. */
function tile({ data, shape: [, rows, columns] }, params) {
  const rowAt = (i) => data.subarray((params.head * rows + i) * columns, (params.head * rows + i + 1) * columns);
  const cells = pooled(rowAt, rows, columns, params);
  return { data: cells, shape: [params.height, params.width] };
}

function span(text, limit) {
  if (text == null) return [0, limit];
  const [a, b] = String(text).split(":");
  return [a === "" ? 0 : Number(a), b === "" ? limit : Math.min(limit, Number(b))];
}

const PATIENCE = 20_000; // milliseconds after which a kernel that does not answer is taken to be gone

/** A notebook: the kernel answers messages of an anywidget model, which has `send` and "msg:custom". What was saved with the
 * notebook, a `file`, is answered without it.
 */
export class WidgetSource {
  constructor(model, file = /** @type {FileSource | null} */ (null)) {
    this.model = model;
    this.file = file;
    this.waiting = new Map();
    // One widget may be shown twice, and each view hears the answers to both. No randomUUID: a notebook over plain http
    // has none.
    this.name = crypto.getRandomValues(new Uint32Array(4)).join("-");
    this.next = 0;
    this.hear = (message, buffers) => {
      const waiting = this.waiting.get(message.id);
      if (!waiting) return;
      this.waiting.delete(message.id);
      if (message.error) waiting.reject(new Error(message.error));
      else waiting.resolve({ ...message, buffer: buffers?.[0] });
    };
    model.on("msg:custom", this.hear);
  }

  async get(path, params, signal) {
    const held = this.file && (await this.file.get(path, params).catch(() => null));
    return held ?? (await this.ask("GET", keyOf(path, params), null, signal)).json;
  }

  async array(path, params, signal) {
    const held = this.file && (await this.file.array(path, params).catch(() => null));
    if (held) return held;
    const found = await this.ask("GET", keyOf(path, params), null, signal);
    const { shape, type, peaks = [], computed = 1, note = "", buffer } = found;
    const bytes = new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
    return { data: decoded(bytes.slice().buffer, type), shape, type, peaks, computed, note };
  }

  async post(path, body, signal) {
    const buffers = body instanceof Blob ? [await body.arrayBuffer()] : [];
    return (await this.ask("POST", path, buffers.length ? null : body, signal, buffers)).json;
  }

  ask(method, path, body, signal, buffers = []) {
    const id = `${this.name}/${this.next++}`;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      const words = `the notebook's kernel does not answer (${path.split("?")[0]}): run the cell again to see this`;
      if (this.file) setTimeout(() => this.waiting.delete(id) && reject(new Error(words)), PATIENCE);
      signal?.addEventListener("abort", () => {
        if (!this.waiting.delete(id)) return;
        this.model.send({ id, method: "CANCEL" });
        reject(new DOMException("cancelled", "AbortError"));
      });
      this.model.send({ id, method, path, body }, undefined, buffers);
    });
  }

  close() {
    this.model.off("msg:custom", this.hear);
  }
}

/** A trace, one text of its batch: the last one, where it has fewer. @param {Source} source @returns {Promise<Trace>} */
export async function fetchTrace(source, id, entry) {
  const path = `/api/traces/${encodeURIComponent(id)}`;
  const first = await source.get(path);
  const own = Math.min(entry, first.batch - 1);
  return own > 0 ? source.get(path, { entry: own }) : first;
}

/** The pictures or sounds that ship, as files, for views that would otherwise begin empty; none where the source has none.
 *
 * @param {Source} source @param {"pictures" | "sounds"} kind
 * @returns {Promise<{name: string, file: Blob}[]>}
 */
export async function samplesOf(source, kind) {
  try {
    const found = (await source.get("/api/samples"))[kind] ?? [];
    return found.map(({ name, type, data }) => {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      return { name, file: new Blob([bytes], { type }) };
    });
  } catch {
    return []; // a single file has none
  }
}
