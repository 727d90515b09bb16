// The weights of one call, fetched a block of rows at a time; never the whole matrix.
import { Pieces } from "./sources.js";
import { callPath, gather } from "./tokens.js";

const BLOCK = 1 << 18; // weights in one answer: 1 MB
const DENSE = 2048; // keys up to which whole rows are fetched; beyond, the strongest of each row
export const STRONGEST = 128;
const KEPT = 1 << 24; // weights kept; the blocks longest unused go first

export class Rows {
  /** A name of what they are of. */
  key = "";

  /** `arrived()` is called when rows that were asked for are there.
   *
   * @param {Context} context
   * @param {Call} call
   * @param {number} entry
   * @param {() => void} arrived
   * @param {QueryParameters | null} target of contributions, which are shown instead of weights
   * @param {number} size rows that are asked for together, at most
   */
  constructor({ source, trace, fail }, call, entry, arrived, target = null, size = 64) {
    this.source = source;
    this.call = call;
    this.entry = entry;
    this.path = callPath(trace, call);
    this.target = target;
    this.dense = target !== null || call.keys <= DENSE; // contributions are of short texts
    const width = call.heads * (this.dense ? call.keys : STRONGEST);
    this.size = Math.max(1, Math.min(size, 2 ** Math.floor(Math.log2(BLOCK / width))));
    const told = { arrived, failed: fail };
    const most = Math.max(2, Math.floor(KEPT / (this.size * width)));
    this.blocks = new Pieces((number, signal) => this.load(number, signal), { ...told, most });
    this.columns = new Pieces((span, signal) => this.loadColumn(span, signal), { ...told, most: 256 });
  }

  /** One row of one head: {data: Float32Array over the keys}, or {values, indices} strongest first; null if not here. */
  row(head, i) {
    const number = Math.floor(i / this.size);
    const block = this.blocks.get(number);
    if (!block) return null;
    const at = head * this.rowsIn(number) + (i - number * this.size);
    if (this.dense) return { data: block.data.subarray(at * this.call.keys, (at + 1) * this.call.keys) };
    const k = block.shape[2];
    return {
      values: block.values.subarray(at * k, (at + 1) * k),
      indices: block.indices.subarray(at * k, (at + 1) * k),
    };
  }

  /** What every query gives to the keys a…b: {data: [heads, queries]}, their sum; null while it is fetched. */
  column(a, b) {
    return this.columns.get(`${a}:${b}`);
  }

  rowsIn(number) {
    return Math.min(this.size, this.call.queries - number * this.size);
  }

  /** Whether the numbers have signs, and add up over queries as well as keys. */
  get signed() {
    return this.target !== null;
  }

  /** Weights, or contributions, of all heads. */
  array(part, signal) {
    if (this.target) return this.source.array(`${this.path}/contributions`, { ...this.target, ...part }, signal);
    return this.source.array(`${this.path}/weights`, { entry: this.entry, ...part, type: "float32" }, signal);
  }

  async load(number, signal) {
    const first = number * this.size;
    const rows = `${first}:${first + this.rowsIn(number)}`;
    if (this.dense) return this.array({ rows }, signal);
    const params = { entry: this.entry, rows, k: STRONGEST };
    const { values, indices } = await this.source.get(`${this.path}/top`, params, signal);
    return {
      values: Float32Array.from(values.flat(2)),
      indices: Int32Array.from(indices.flat(2)),
      shape: [values.length, values[0].length, values[0][0].length],
    };
  }

  async loadColumn(cols, signal) {
    const { data, shape } = await this.array({ cols }, signal);
    const out = new Float32Array(data.length / shape[2]);
    for (let i = 0; i < data.length; i++) out[Math.floor(i / shape[2])] += data[i];
    return { data: out };
  }

  close() {
    this.blocks.close();
    this.columns.close();
  }
}

const HABITUAL = 1 << 21; // weights of a layer up to which its habits are computed

/** max(K, O) of weights [heads, queries, keys]: the means of a key and of a distance over the other rows (seeing/habit.py).
 *
 * A key that gets nothing from any head of a row is taken for one that the row may not see.
 */
export class Habits {
  constructor(w, heads, queries, keys, distances) {
    this.queries = queries;
    this.keys = keys;
    this.apart = queries + keys - 1;
    this.received = new Float64Array(heads * keys);
    this.seers = new Float64Array(keys);
    this.distances = new Float64Array(heads * this.apart);
    this.rows = new Float64Array(this.apart);
    for (let i = 0; i < queries; i++)
      for (let j = 0; j < keys; j++) {
        const d = j - i + queries - 1;
        let seen = false;
        for (let head = 0; head < heads; head++) {
          const x = w[(head * queries + i) * keys + j];
          if (x > 0) seen = true;
          this.received[head * keys + j] += x;
          if (distances) this.distances[head * this.apart + d] += x;
        }
        if (seen) this.seers[j] += 1;
        if (seen && distances) this.rows[d] += 1;
      }
  }

  /** Beside weight w of a head from i to j. */
  of(head, i, j, w) {
    return Math.max(0, ...this.parts(head, i, j, w));
  }

  /** [K, O]. */
  parts(head, i, j, w) {
    const d = j - i + this.queries - 1;
    const mean = (sum, count) => (count > 1 ? (sum - w) / (count - 1) : 0);
    return [
      mean(this.received[head * this.keys + j], this.seers[j]),
      mean(this.distances[head * this.apart + d], this.rows[d]),
    ];
  }
}

export class Links {
  constructor(rows, querySide, keySide) {
    this.rows = rows;
    this.querySide = querySide;
    this.keySide = keySide;
    this.known = new Map();
    /** @type {Int32Array | null} */
    this.labelOf = null;
    /** @type {Habits | null} */
    this.ofHeads = null;
  }

  /** From one label, by one head: {keys, weights}, strongest first; null while it is fetched. */
  from(head, query) {
    const key = head * this.querySide.groups.length + query;
    let found = this.known.get(key);
    if (!found) {
      const rows = this.querySide.groups[query].map((i) => this.rows.row(head, i));
      if (rows.includes(null)) return null;
      found = this.rows.dense
        ? sorted(
            gather(
              rows.map((row) => row.data),
              this.keySide.groups,
              this.rows.signed,
            ),
            this.rows.signed ? Math.abs : (weight) => weight,
          )
        : this.merged(rows);
      if (this.known.size > 50_000) this.known.clear();
      this.known.set(key, found);
    }
    return found;
  }

  /** What each head gives a key, or a distance, from the other rows too; null for a long text, and while rows are fetched. */
  habits() {
    const { heads, kind } = this.rows.call;
    const [queries, keys] = [this.querySide.groups.length, this.keySide.groups.length];
    if (this.ofHeads || !this.rows.dense || heads * queries * keys > HABITUAL) return this.ofHeads;
    const w = new Float32Array(heads * queries * keys);
    let here = true;
    for (let head = 0; head < heads; head++)
      for (let i = 0; i < queries; i++) {
        const found = this.from(head, i);
        here &&= found !== null;
        found?.keys.forEach((j, at) => {
          w[(head * queries + i) * keys + j] = found.weights[at];
        });
      }
    if (here) this.ofHeads = new Habits(w, heads, queries, keys, kind === "self");
    return this.ofHeads;
  }

  /** To one label, by every head: weights [heads × labels of the queries], or null while it is fetched.
   *
   * Of a long text only the queries in view are asked, and a key below their strongest counts as 0: the weight of a row
   * takes all of its energies, and a column would take all rows.
   */
  to(key, view) {
    if (!this.rows.dense) return this.toOf(key, view);
    const group = this.keySide.groups[key];
    const found = this.rows.column(group[0], group[group.length - 1] + 1);
    if (!found) return null;
    const { heads, queries } = this.rows.call;
    const out = new Float32Array(heads * this.querySide.groups.length);
    for (let head = 0; head < heads; head++)
      this.querySide.groups.forEach((rows, q) => {
        let sum = 0;
        for (const i of rows) sum += found.data[head * queries + i];
        out[head * this.querySide.groups.length + q] = this.rows.signed ? sum : sum / rows.length;
      });
    return out;
  }

  toOf(key, view) {
    const { heads } = this.rows.call;
    const count = this.querySide.groups.length;
    const out = new Float32Array(heads * count);
    for (let head = 0; head < heads; head++)
      for (const query of view) {
        const found = this.from(head, query);
        const at = found ? found.keys.indexOf(key) : -1;
        if (at >= 0) out[head * count + query] = found.weights[at];
      }
    return out;
  }

  merged(rows) {
    this.labelOf ??= labelByPosition(this.keySide.groups, this.rows.call.keys);
    const { labelOf } = this;
    const sums = new Map();
    for (const { values, indices } of rows)
      values.forEach((value, at) => {
        const g = labelOf[indices[at]];
        sums.set(g, (sums.get(g) ?? 0) + value / rows.length);
      });
    const pairs = [...sums].sort((a, b) => b[1] - a[1]);
    return { keys: Int32Array.from(pairs, (p) => p[0]), weights: Float32Array.from(pairs, (p) => p[1]) };
  }
}

/** `size` is what they are sorted by: weights themselves, contributions without their signs. */
function sorted(weights, size) {
  const order = Array.from(weights.keys())
    .filter((j) => size(weights[j]) > 0)
    .sort((a, b) => size(weights[b]) - size(weights[a]));
  return { keys: Int32Array.from(order), weights: Float32Array.from(order, (j) => weights[j]) };
}

/** The label that holds each position. */
function labelByPosition(groups, count) {
  const out = new Int32Array(count);
  groups.forEach((group, label) => {
    for (const position of group) out[position] = label;
  });
  return out;
}
