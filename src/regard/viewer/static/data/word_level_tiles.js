// Tiles between words instead of tokens: the weights of a short text are fetched once, gathered, and pooled here.

import { TILE_SIDE } from "./constants.js";
import { pooled } from "./pooling.js";
import { bounds, levelAt } from "./tiles.js";
import { gather } from "./tokens.js";

/** Answers as `Tiles` does. `sides` are those of tokens.js, between words; `call` counts them. */
export class WordTiles {
  constructor(source, path, call, { head, pool, ...params }, sides, changed) {
    this.call = { queries: sides.query.labels.length, keys: sides.key.labels.length };
    this.pool = pool;
    this.sides = sides;
    this.changed = changed;
    this.top = levelAt(TILE_SIDE / Math.max(this.call.queries, this.call.keys));
    this.kept = new Map();
    this.control = new AbortController();
    this.pending = 1;
    this.computed = 0;
    this.why = "";
    this.signed = path.endsWith("/contributions");
    this.fetch(source, this.signed ? path : `${path}/weights`, { heads: head, ...params }, call.keys);
  }

  async fetch(source, path, params, keys) {
    try {
      const { data } = await source.array(path, params, this.control.signal);
      const row = (i) => data.subarray(i * keys, (i + 1) * keys);
      this.rows = this.sides.query.groups.map((group) => gather(group.map(row), this.sides.key.groups, this.signed));
      this.computed = 1;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.why = error.message;
    }
    this.pending = 0;
    this.changed();
  }

  find(level, row, column) {
    const name = `${level}/${row}/${column}`;
    if (this.rows && !this.kept.has(name)) this.kept.set(name, this.pooled(level, row, column));
    return this.kept.get(name);
  }

  pooled(level, row, column) {
    const { queries, keys } = this.call;
    const window = bounds(level, row, column, queries, keys);
    const data = pooled((i) => this.rows[i], queries, keys, { ...window, pool: this.pool, signed: this.signed });
    return { level, row, column, data, height: window.height, width: window.width, computed: 1 };
  }

  want() {}

  failed() {
    return this.why;
  }

  close() {
    this.control.abort();
  }
}
