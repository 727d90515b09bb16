// Tiles: one head as a pyramid of squares. At level L a cell is 2^L × 2^L weights, pooled; level 0 is the weights.
//
// Tiles are asked for a few at a time, what is in sight first; those that are no longer wanted are cancelled, and the
// least recently used are forgotten.
import { TILE_SIDE } from "./constants.js";
import { LATER } from "./source.js";

const KEPT = 160; // of a head's tiles: 256 KiB of numbers and as much of colours each
const AT_ONCE = 4;
export const AGAIN = 120; // milliseconds until the rest of a tile is asked for

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
    this.kept = new Map(); // name → {level, row, column, data, width, height} or {error, until}
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
        const { data, shape, computed = 1 } = await this.source.array(`${this.path}/tile`, asked, control.signal);
        this.keep(name, { level, row, column, data, height: shape[0], width: shape[1], computed });
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
