// The Heads view as a picture and as a table.
import { callPath } from "../../data/calls.js";
import { gather } from "../../data/tokens.js";
import { inks, onPaper } from "../../draw/canvas.js";
import { hiddenNames } from "./heads_sidebar.js";
import { drawLines, drawTokens, lineWidth, PAD } from "./link_lines.js";

const WHOLE = 1 << 22; // weights asked for with all their digits, for a table

/** What is in sight; of a short text no more than its rows. */
export function headsPicture(view) {
  const rows = Math.max(view.querySide.labels.length, view.keySide.labels.length - view.shift);
  const [width, height] = [view.box.clientWidth, Math.min(view.box.clientHeight, rows * view.row + 2 * PAD)];
  const colors = inks(view.box);
  return onPaper(width, height, colors.paper, (ctx) => {
    const scene = view.scene(width, height);
    const shown = view.shown(scene);
    drawLines(ctx, scene, shown.links);
    drawTokens(ctx, scene, shown.focus, shown.links, view.pins, view.pointer.hover, colors);
  });
}

/** The heads' colours, how strong lines and squares are, and what is hidden. @returns {Legend} */
export function headsLegend(view) {
  const { palette } = view.context;
  const chosen = view.focus().length > 0;
  const entries = view.active.map((head) => ({ label: `head ${head}`, color: palette.head(head) }));
  const strokes = [0.05, 0.2, 0.5, 1].map((weight) => ({
    label: String(weight),
    width: lineWidth(weight),
    opacity: Math.sqrt(weight),
  }));
  const note = view.muted.size ? `Lines from and to ${hiddenNames(view)} are hidden; the others are the weights.` : "";
  if (!chosen) return { entries, note: note || "The stronger a line, the larger the weight." };
  return { entries, strokes, from: "0", to: "1", words: "weight of each head (squares), square-root scale", note };
}

/** The links that are drawn, and those of hidden tokens beside them, with all digits of their weights. */
export async function headsTable(view) {
  const scene = view.scene(view.box.clientWidth, view.box.clientHeight);
  const all = { ...scene, muted: new Set(), mutedQueries: new Set() };
  const hidden = ({ query, key }) => view.muted.has(key) || view.mutedQueries.has(query);
  const shown = view.shown(scene).links;
  const also = view.muted.size ? view.shown(all).links.filter(hidden) : [];
  const keyOf = ({ head, query, key }) => `${head} ${query} ${key}`;
  const drawn = new Set(shown.map(keyOf));
  const links = [...shown, ...also.filter((link) => !drawn.has(keyOf(link)))];
  const exact = await exactWeights(view, links);
  const rows = links.map((link) => [
    view.call.name,
    link.head,
    link.query,
    view.querySide.labels[link.query],
    link.key,
    view.keySide.labels[link.key],
    drawn.has(keyOf(link)) ? "" : "hidden",
    exact(link),
  ]);
  return [["layer", "head", "query", "query token", "key", "key token", "drawn", "weight"], ...rows];
}

/** A function that gives a link's weight as float32: the page itself draws from float16. */
async function exactWeights(view, links) {
  const { querySide, keySide, call } = view;
  const positions = links.flatMap(({ query }) => querySide.groups[query]);
  const [first, last] = [Math.min(...positions), Math.max(...positions)];
  const rows = last - first + 1;
  if (!links.length || view.rows.signed || !view.rows.dense || call.heads * rows * call.keys > WHOLE)
    return ({ weight }) => weight;
  const path = `${callPath(view.trace, call)}/weights`;
  const params = { entry: view.state.entry ?? 0, rows: `${first}:${last + 1}`, type: "float32" };
  const { data } = await view.context.source.array(path, params, view.ending.signal);
  const known = new Map(); // by head and query: weights over the labels of the keys
  return ({ head, query, key }) => {
    const name = `${head} ${query}`;
    if (!known.has(name)) {
      const at = (i) => (head * rows + i - first) * call.keys;
      const own = querySide.groups[query].map((i) => data.subarray(at(i), at(i) + call.keys));
      known.set(name, gather(own, keySide.groups));
    }
    return digits(known.get(name)[key]);
  };
}

/** The shortest number that is this float32. */
function digits(x) {
  return Number(x.toPrecision(9));
}
