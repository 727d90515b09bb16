// The small maps of the Model view: one for each head, fetched together, or layer by layer where the text is long.
import { SMALL_MAP_SIDE } from "../../data/constants.js";

const LONG = 1 << 26; // weights of a trace from which its maps are fetched layer by layer

/** `changed()` is called as maps arrive; `signal` ends requests. */
export class SmallMaps {
  /** All maps, head after head; undefined until some are here. @type {(ArrayAnswer & {peaks: number[]}) | undefined} */
  maps;
  /** The pooling of `maps`, or of those that are on their way. @type {string} */
  pool;

  constructor(context, signal, changed) {
    this.context = context;
    this.trace = context.trace;
    this.base = `/api/traces/${encodeURIComponent(this.trace.id)}`;
    this.signal = signal;
    this.changed = changed;
    this.heads = this.trace.calls.reduce((sum, call) => sum + call.heads, 0);
    /** How far they are, in words; empty once all are here. */
    this.progress = "";
  }

  /** Fetch those of a pooling, "max" or "mean". */
  async load(pool, entry) {
    const params = { entry, size: SMALL_MAP_SIDE, pool };
    this.pool = pool;
    const weights = this.trace.calls.reduce((sum, { heads, queries, keys }) => sum + heads * queries * keys, 0);
    if (weights > LONG && !this.context.source.holds) return this.loadByLayer(params);
    try {
      const found = await this.context.source.array(`${this.base}/thumbs`, params, this.signal);
      if (this.pool !== pool) return;
      this.maps = found;
      this.changed();
    } catch (error) {
      this.context.fail(error);
    }
  }

  /** Of a long text the maps come layer by layer, and the page says how far they are. */
  async loadByLayer(params) {
    const side = SMALL_MAP_SIDE;
    const size = this.heads * side * side;
    /** @type {ArrayAnswer & {peaks: number[]}} */
    const thumbs = {
      data: new Uint8Array(size),
      shape: [this.heads, side, side],
      peaks: [],
      note: "",
      type: "uint8",
      computed: 1,
    };
    let at = 0;
    try {
      for (const [done, call] of this.trace.calls.entries()) {
        this.progress = `Computing the maps: ${done} of ${this.trace.calls.length} layers are here.`;
        this.changed();
        const found = await this.context.source.array(`${this.base}/thumbs`, { ...params, call: call.id }, this.signal);
        if (this.pool !== params.pool) return;
        thumbs.data.set(found.data, at * side * side);
        thumbs.note = found.note;
        thumbs.peaks.push(...(found.peaks ?? []));
        at += call.heads;
        this.maps = thumbs;
      }
      this.progress = "";
      this.changed();
    } catch (error) {
      this.context.fail(error);
    }
  }

  /** What a cell of the small maps is: what the server says of it, or what follows from the lengths. */
  cellWords() {
    const note = this.maps?.note;
    if (note) return note[0].toUpperCase() + note.slice(1);
    const per = this.trace.calls.map(({ queries, keys }) => [queries, keys].map((x) => Math.ceil(x / SMALL_MAP_SIDE)));
    const [high, wide] = [0, 1].map((side) => Math.max(...per.map((one) => one[side])));
    if (high * wide === 1) return "A cell is one weight";
    const same = per.every((one) => one[0] === high && one[1] === wide);
    const pool = this.pool === "mean" ? "mean" : "largest";
    return `A cell is the ${pool} weight of ${same ? "about" : "up to"} ${high} × ${wide} tokens`;
  }
}
