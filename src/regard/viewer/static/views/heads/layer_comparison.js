// Two layers beside each other in the Heads view: which ones can be, which ones are, and how they are chosen.

/** The other layers between the same tokens. @param {Trace} trace @param {Call} call @returns {Call[]} */
export function comparable(trace, call) {
  const same = ["query_side", "key_side", "queries", "keys"];
  return trace.calls.filter((one) => one !== call && same.every((name) => one[name] === call[name]));
}

/** The layer that a link asks for beside `call`; null where it asks for none.
 *
 * Where it cannot stand there, it is the nearest one that can: the first layer may have become the same, or one between
 * other tokens.
 *
 * @param {Trace} trace @param {Call} call @param {State} state @returns {Call | null}
 */
export function otherCall(trace, call, { other }) {
  if (other == null) return null;
  const others = comparable(trace, call);
  const place = (one) => trace.calls.indexOf(one);
  const known = trace.calls.findIndex(({ id }) => id === String(other));
  const wanted = known < 0 ? place(call) + 1 : known;
  const distance = (one) => Math.abs(place(one) - wanted);
  return others.length ? others.reduce((best, one) => (distance(best) <= distance(one) ? best : one)) : null;
}

/** A second layer beside the first: the next one, or the one before the last; or none. `view` is the Heads view. */
export function compareLayers({ trace, call, context }, on) {
  const others = comparable(trace, call);
  const next = others.find((one) => trace.calls.indexOf(one) > trace.calls.indexOf(call)) ?? others.at(-1);
  context.state.set({ other: on && next ? next.id : null });
}

/** The next or previous layer as the second one. */
export function stepOther(view, by) {
  if (view.panels.length < 2) return compareLayers(view, true);
  const others = comparable(view.trace, view.call);
  const next = others[others.indexOf(view.panels[1].call) + by];
  if (next) view.context.state.set({ other: next.id });
}

/** The strongest of the heads that are on, in Map, beside the same head of the second layer, or of the next one. */
export function openMaps({ trace: { calls }, call, panels, context }) {
  const next = panels[1]?.call ?? calls[(calls.indexOf(call) + 1) % calls.length];
  const { links } = panels[0].shown(panels[0].scene());
  const head = links.reduce((most, link) => (link.alpha > most.alpha ? link : most), { alpha: 0, head: 0 }).head;
  const other = { call: next.id, head: Math.min(head, next.heads - 1) };
  context.state.set({ view: "map", call: call.id, head, map: { other } });
}
