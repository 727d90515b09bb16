// The weights of one call, fetched a block of rows at a time; never the whole matrix.
import { callPath } from "./calls.js";
import { LATER } from "./source.js";

const BLOCK = 1 << 19; // weights in one answer: 1 MB as float16
const DENSE = 2048; // keys up to which whole rows are fetched; beyond, the strongest of each row
export const STRONGEST = 128;
const KEPT = 1 << 24; // weights kept; the blocks longest unused go first

export class Rows {
  /** `arrived()` is called when rows that were asked for are there.
   *
   * @param {Context} context
   * @param {Call} call
   * @param {number} entry
   * @param {() => void} arrived
   * @param {QueryParameters | null} target of contributions, which are shown instead of weights
   */
  constructor({ source, trace, fail }, call, entry, arrived, target = null) {
    this.source = source;
    this.call = call;
    this.entry = entry;
    this.arrived = arrived;
    this.failed = fail;
    this.path = callPath(trace, call);
    this.target = target;
    this.dense = target !== null || call.keys <= DENSE; // contributions are of short texts
    const width = call.heads * (this.dense ? call.keys : STRONGEST);
    this.size = Math.max(1, Math.min(64, 2 ** Math.floor(Math.log2(BLOCK / width))));
    this.blocks = new Map(); // number → {data} | {values, indices} | "loading" | "failed"
    this.columns = new Map();
    this.ending = new AbortController();
  }

  /** One row of one head: {data: Float32Array over the keys}, or {values, indices} strongest first; null if not here. */
  row(head, i) {
    const number = Math.floor(i / this.size);
    const block = this.blocks.get(number);
    if (block === undefined) this.load(number);
    if (block === undefined || typeof block === "string") return null;
    this.blocks.delete(number);
    this.blocks.set(number, block); // used last
    const rows = this.rowsIn(number);
    const at = head * rows + (i - number * this.size);
    if (this.dense) return { data: block.data.subarray(at * this.call.keys, (at + 1) * this.call.keys) };
    const k = block.shape[2];
    return {
      values: block.values.subarray(at * k, (at + 1) * k),
      indices: block.indices.subarray(at * k, (at + 1) * k),
    };
  }

  /** What every query gives to the keys a…b: {data: [heads, queries]}, their sum; null while it is fetched. */
  column(a, b) {
    const key = `${a}:${b}`;
    const found = this.columns.get(key);
    if (found === undefined) this.loadColumn(key, b - a);
    return found === undefined || found === "loading" ? null : found;
  }

  rowsIn(number) {
    return Math.min(this.size, this.call.queries - number * this.size);
  }

  /** Whether the numbers have signs, and add up over queries as well as keys. */
  get signed() {
    return this.target !== null;
  }

  /** Weights, or contributions, of all heads. */
  array(part) {
    const { signal } = this.ending;
    if (this.target) return this.source.array(`${this.path}/contributions`, { ...this.target, ...part }, signal);
    return this.source.array(`${this.path}/weights`, { entry: this.entry, ...part, type: "float16" }, signal);
  }

  async load(number) {
    this.blocks.set(number, "loading");
    const first = number * this.size;
    const rows = `${first}:${first + this.rowsIn(number)}`;
    try {
      if (this.dense) {
        this.blocks.set(number, await this.array({ rows }));
      } else {
        const params = { entry: this.entry, rows, k: STRONGEST };
        const { values, indices } = await this.source.get(`${this.path}/top`, params, this.ending.signal);
        const shape = [values.length, values[0].length, values[0][0].length];
        this.blocks.set(number, {
          values: Float32Array.from(values.flat(2)),
          indices: Int32Array.from(indices.flat(2)),
          shape,
        });
      }
      this.trim();
      this.arrived();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.blocks.set(number, "failed");
      setTimeout(() => this.blocks.delete(number), LATER); // asked for again when somebody looks at it
      this.failed(error);
    }
  }

  async loadColumn(key, width) {
    this.columns.set(key, "loading");
    try {
      const { data } = await this.array({ cols: key });
      const out = new Float32Array(data.length / width);
      for (let i = 0; i < data.length; i++) out[Math.floor(i / width)] += data[i];
      if (this.columns.size > 256) this.columns.clear();
      this.columns.set(key, { data: out });
      this.arrived();
    } catch (error) {
      this.columns.delete(key);
      if (error.name !== "AbortError") this.failed(error);
    }
  }

  trim() {
    const most = Math.max(
      2,
      Math.floor(KEPT / (this.size * this.call.heads * (this.dense ? this.call.keys : STRONGEST))),
    );
    for (const [number, block] of this.blocks) {
      if (this.blocks.size <= most) break;
      if (typeof block !== "string") this.blocks.delete(number);
    }
  }

  close() {
    this.ending.abort();
  }
}
