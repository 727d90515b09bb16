// What the maps of the Map view show: a trace, and of it a layer, a head and a text.
import { callOf } from "../../data/calls.js";

/** @typedef {{trace: Trace, call: Call, head: number, entry: number}} Target */

export class MapTargets {
  /** `view` is the Map view. */
  constructor(view) {
    this.view = view;
    /** Traces looked at beside the first, by id and entry; null while one is on its way. @type {Map<string, Trace | null>} */
    this.others = new Map();
  }

  /** What the first or the second map shows; null while a second trace is on its way. @returns {Target | null} */
  of(at) {
    const { context, settings } = this.view;
    const state = context.state.get();
    const given = at === 0 ? state : { ...state, ...settings.other };
    const own = at === 0 || !given.trace || given.trace === context.trace.id;
    const trace = own ? context.trace : this.others.get(`${given.trace}/${given.entry ?? 0}`);
    if (!trace) return null;
    const call = callOf(trace, given);
    const within = (x, most) => Math.min(Math.max(0, Math.trunc(x) || 0), most - 1);
    return { trace, call, head: within(given.head, call.heads), entry: within(given.entry, trace.batch ?? 1) };
  }

  /** Fetch the second trace, where there is one that is not here yet. */
  async fetchOther() {
    const { view } = this;
    const { source, state, trace, fail } = view.context;
    const { trace: id, entry = state.get().entry ?? 0 } = view.settings.other ?? {};
    const key = `${id}/${entry}`;
    if (!id || id === trace.id || this.others.has(key)) return;
    this.others.set(key, null);
    try {
      const path = `/api/traces/${encodeURIComponent(id)}`;
      const first = await source.get(path); // says how many texts it has: maybe fewer than the other
      const own = Math.min(entry, first.batch - 1);
      this.others.set(key, own > 0 ? await source.get(path, { entry: own }) : first);
    } catch (error) {
      fail(error);
      view.set({ other: null });
    }
    view.update();
  }
}
