// The weights of one call, fetched a block of rows at a time as somebody looks at them; never the whole of it.
import { choice } from "./dom.js";
import { LATER } from "./source.js";
import { gather } from "./tokens.js";

const BLOCK = 1 << 19; // weights in one answer: 1 MB as float16
const DENSE = 2048; // keys up to which whole rows are fetched; beyond, the strongest of each row
export const STRONGEST = 128;
const KEPT = 1 << 24; // weights kept; the blocks longest unused go first

/** The path of one call in the API. */
export function callPath(trace, call) {
  return `/api/traces/${encodeURIComponent(trace.id)}/calls/${encodeURIComponent(call.id)}`;
}

/** The call that is looked at: the one in the state, or the first. */
export function callOf(trace, state) {
  return trace.calls.find((call) => call.id === state.call) ?? trace.calls[0];
}

/** Whether the numbers of their layers tell calls apart. */
export function isNumbered(trace) {
  const layers = trace.calls.map((one) => one.layer);
  return !layers.includes(null) && new Set(layers).size === layers.length;
}

/** "3" where layers are enough to tell calls apart, else the module's name. */
export function callName(trace, call) {
  return isNumbered(trace) ? String(call.layer) : call.name;
}

/** The same without what all modules' names begin with: "decoder.0.cross" of "model.net.decoder.0.cross". */
export function ownName(trace, call) {
  if (isNumbered(trace)) return callName(trace, call);
  const names = trace.calls.map((one) => one.name.split("."));
  const own = call.name.split(".");
  let shared = 0;
  while (shared < own.length - 1 && names.every((parts) => parts.length > shared + 1 && parts[shared] === own[shared]))
    shared++;
  return own.slice(shared).join(".");
}

/** A call and its heads in the name of a file: ["layer3", "head7"]; of all heads nothing is said. */
export function fileParts(trace, call, heads) {
  const layer = isNumbered(trace) ? `layer${call.layer}` : call.name;
  const some = heads.length > 0 && (heads.length < call.heads || call.heads === 1);
  return [layer, some ? `head${heads.join("-")}` : ""];
}

/** A list of the calls, `changed(id)` when another is chosen. */
export function callChoice(trace, call, changed) {
  const several = new Set(trace.calls.map((one) => one.kind)).size > 1;
  const options = trace.calls.map((one) => {
    const name = ownName(trace, one);
    return [one.id, several ? `${name} (${one.kind})` : name];
  });
  return choice("Layer", options, call.id, changed, { title: call.name });
}

export class Rows {
  /** `arrived()` is called when rows that were asked for are there, `failed(error)` when they will not come. */
  constructor(source, trace, call, entry, arrived, failed) {
    Object.assign(this, { source, call, entry, arrived, failed });
    this.path = callPath(trace, call);
    this.dense = call.keys <= DENSE;
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

  async load(number) {
    this.blocks.set(number, "loading");
    const first = number * this.size;
    const rows = `${first}:${first + this.rowsIn(number)}`;
    try {
      if (this.dense) {
        const params = { entry: this.entry, rows, type: "float16" };
        this.blocks.set(number, await this.source.array(`${this.path}/weights`, params, this.ending.signal));
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
      const params = { entry: this.entry, cols: key, type: "float16" };
      const { data } = await this.source.array(`${this.path}/weights`, params, this.ending.signal);
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

/** Rows as links between labels (tokens or words), the strongest first. */
export class Links {
  constructor(rows, querySide, keySide) {
    Object.assign(this, { rows, querySide, keySide });
    this.known = new Map();
    this.wordOf = null;
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
            ),
          )
        : this.merged(rows);
      if (this.known.size > 50_000) this.known.clear();
      this.known.set(key, found);
    }
    return found;
  }

  /** All the weight of a row that `from` gave; where only its strongest are known, it is 1 nevertheless. */
  total({ weights }) {
    return this.rows.dense || !weights[0] ? weights.reduce((sum, weight) => sum + weight, 0) : 1;
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
        out[head * this.querySide.groups.length + q] = sum / rows.length;
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
    if (!this.wordOf) {
      this.wordOf = new Int32Array(this.rows.call.keys);
      this.keySide.groups.forEach((group, g) => group.forEach((j) => (this.wordOf[j] = g)));
    }
    const sums = new Map();
    for (const { values, indices } of rows)
      values.forEach((value, at) => {
        const g = this.wordOf[indices[at]];
        sums.set(g, (sums.get(g) ?? 0) + value / rows.length);
      });
    const pairs = [...sums].sort((a, b) => b[1] - a[1]);
    return { keys: Int32Array.from(pairs, (p) => p[0]), weights: Float32Array.from(pairs, (p) => p[1]) };
  }
}

function sorted(weights) {
  const order = Array.from(weights.keys())
    .filter((j) => weights[j] > 0)
    .sort((a, b) => weights[b] - weights[a]);
  return { keys: Int32Array.from(order), weights: Float32Array.from(order, (j) => weights[j]) };
}
