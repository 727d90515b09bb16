// The single file that the page is in, as a source of data (source.js).
import { pooled } from "./pooling.js";
import { decoded, keyOf } from "./source.js";

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
  runs() {
    return false;
  }

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
  return { data: decoded(await new Response(stream).arrayBuffer(), type), shape, type, peaks, computed: 1, note };
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
  return { data: out, shape: [chosen.length, bottom - top, right - left], type: "float32", computed: 1, note: "" };
}

/** A rectangle of one head, pooled. */
function tile({ data, shape: [, rows, columns] }, params) {
  const rowAt = (i) => data.subarray((params.head * rows + i) * columns, (params.head * rows + i + 1) * columns);
  const cells = pooled(rowAt, rows, columns, params);
  return { data: cells, shape: [params.height, params.width], type: "float32", computed: 1, note: "" };
}

function span(text, limit) {
  if (text == null) return [0, limit];
  const [a, b] = String(text).split(":");
  return [a === "" ? 0 : Number(a), b === "" ? limit : Math.min(limit, Number(b))];
}
