// Tiles: one head as a pyramid of squares. At level L a cell is 2^L × 2^L weights, pooled; level 0 is the weights.
//
// Tiles are asked for a few at a time, what is in sight first; those that are no longer wanted are cancelled, and the
// least recently used are forgotten.
import { TILE_SIDE } from "./constants.js";
import { LATER } from "./sources.js";
import { gather } from "./tokens.js";

const KEPT = 160; // of a head's tiles: 256 KiB of numbers and as much of colours each
const AT_ONCE = 4;
const AGAIN = 120; // milliseconds until the rest of a tile is asked for

/** The level whose cells are between one and two pixels wide where a weight is `scale` pixels wide. */
export function levelAt(scale) {
  return Math.max(0, Math.ceil(-Math.log2(scale) - 1e-9));
}

/** The rectangle of weights of a tile, and how many cells it has. */
export function bounds(level, row, column, queries, keys) {
  const reach = TILE_SIDE * 2 ** level;
  const [top, left] = [row * reach, column * reach];
  const [bottom, right] = [Math.min(top + reach, queries), Math.min(left + reach, keys)];
  return {
    top,
    left,
    bottom,
    right,
    height: Math.ceil((bottom - top) / 2 ** level),
    width: Math.ceil((right - left) / 2 ** level),
  };
}

/** `call` has `queries` and `keys`; `changed()` is called when a tile has come. */
export class Tiles {
  constructor(source, path, call, params, changed) {
    this.source = source;
    this.path = path;
    this.call = call;
    this.params = params;
    this.changed = changed;
    this.kept = new Map(); // name → {level, row, column, data, width, height, computed, note} or {error, until}
    this.running = new Map(); // name → AbortController
    this.waiting = null; // nothing was asked for yet
    this.top = levelAt(TILE_SIDE / Math.max(call.queries, call.keys)); // where the whole head is one tile
  }

  /** A tile that is here, or undefined. */
  find(level, row, column) {
    const name = `${level}/${row}/${column}`;
    const tile = this.kept.get(name);
    if (tile) {
      this.kept.delete(name);
      this.kept.set(name, tile); // the last used is the last of the map
    }
    return tile;
  }

  /** These are in sight: [level, row, column], the most wanted first. Others that were asked for are not wanted now. */
  want(list) {
    const names = new Set(list.map((at) => at.join("/")));
    for (const [name, running] of this.running) {
      if (names.has(name)) continue;
      running.abort();
      this.running.delete(name);
    }
    const here = (name) => {
      const { computed = 0, until = 0 } = this.kept.get(name) ?? {};
      return computed >= 1 || performance.now() < until;
    };
    this.waiting = list.filter((at) => !here(at.join("/")) && !this.running.has(at.join("/")));
    this.next();
  }

  /** The share of the whole head that is computed, as far as the coarsest tile tells. */
  get computed() {
    return this.kept.get(`${this.top}/0/0`)?.computed ?? 0;
  }

  /** How many are being computed or waited for. */
  get pending() {
    return this.running.size + (this.waiting?.length ?? 1);
  }

  /** Why a tile of this level cannot be had, if so. */
  failed(level) {
    for (const tile of this.kept.values()) if (tile.error && tile.level === level) return tile.error;
    return "";
  }

  next() {
    while (this.running.size < AT_ONCE && this.waiting?.length) this.fetch(...this.waiting.shift());
  }

  async fetch(level, row, column) {
    const name = `${level}/${row}/${column}`;
    const control = new AbortController();
    this.running.set(name, control);
    const asked = { ...this.params, ...bounds(level, row, column, this.call.queries, this.call.keys) };
    try {
      for (;;) {
        const { data, shape, computed = 1, note } = await this.source.array(`${this.path}/tile`, asked, control.signal);
        this.keep(name, { level, row, column, data, height: shape[0], width: shape[1], computed, note });
        if (computed >= 1) break;
        this.changed(); // a part of it; the rest is computed meanwhile, and asked for again
        await new Promise((resume) => setTimeout(resume, AGAIN));
        if (control.signal.aborted) return;
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      this.keep(name, { level, row, column, error: error.message, until: performance.now() + LATER });
    } finally {
      if (this.running.get(name) === control) this.running.delete(name);
    }
    this.next();
    this.changed();
  }

  keep(name, tile) {
    this.kept.set(name, tile);
    for (const old of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      if (!old.startsWith(`${this.top}/`)) this.kept.delete(old); // the whole head stays: it stands in for the others
    }
  }

  close() {
    this.waiting = [];
    for (const running of this.running.values()) running.abort();
    this.running.clear();
  }
}

// Pooling: a rectangle of a matrix as fewer cells, as the server pools it (viewer/tiles.py).

/** [height, width] cells of a rectangle, each the largest of the weights it covers; of contributions
 * (`signed`) the one of largest size.
 *
 * `rowAt(i)` is row i of the matrix. Bottom and right may lie beyond the matrix of `rows` × `columns`.
 */
export function pooled(rowAt, rows, columns, { top, left, bottom, right, height, width, signed = false }) {
  const down = edges(top, Math.min(bottom, rows), height);
  const across = edges(left, Math.min(right, columns), width);
  const largest = new Float32Array(height * width);
  for (let y = 0; y < height; y++)
    for (let i = down[y]; i < down[y + 1]; i++) {
      const row = rowAt(i);
      for (let x = 0; x < width; x++)
        for (let j = across[x]; j < across[x + 1]; j++) {
          const at = y * width + x;
          const larger = signed ? Math.abs(row[j]) > Math.abs(largest[at]) : row[j] > largest[at];
          if (larger) largest[at] = row[j];
        }
    }
  return largest;
}

/** Where `count` cells between `start` and `stop` begin, and where the last one ends.
 *
 * Cells are of a power of two where that gives as many, the last one smaller; else as even as possible.
 */
export function edges(start, stop, count) {
  const length = stop - start;
  let size = 1;
  while (size * count < length) size *= 2;
  const powers = Math.ceil(length / size) === count;
  const edge = (at) => start + (powers ? Math.min(at * size, length) : Math.floor((at * length) / count));
  return Array.from({ length: count + 1 }, (_, at) => edge(at));
}

/** Answers requests for tiles between words instead of tokens: the weights of a short text are fetched once, gathered, and
 * pooled here. `sides` are those of tokens.js, between words; of contributions the path ends with their name.
 */
export function wordSource(source, path, { head, pool: _pool, ...params }, keys, { query, key }) {
  const signed = path.endsWith("/contributions");
  const load = async () => {
    const { data } = await source.array(signed ? path : `${path}/weights`, { heads: head, ...params });
    const row = (i) => data.subarray(i * keys, (i + 1) * keys);
    return query.groups.map((group) => gather(group.map(row), key.groups, signed));
  };
  let loading = null;
  return {
    async array(_path, asked) {
      loading ??= load().catch((error) => {
        loading = null; // it may be asked for again
        throw error;
      });
      const rows = await loading;
      const data = pooled((i) => rows[i], rows.length, key.labels.length, { ...asked, signed });
      return { data, shape: [asked.height, asked.width] };
    },
  };
}
