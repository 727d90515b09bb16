// The Heads view as a picture and as a table.
import { callPath, layerTitle } from "../../data/calls.js";
import { gather } from "../../data/tokens.js";
import { inks, onPaper } from "../../draw/canvas.js";
import { hiddenNames } from "./heads_sidebar.js";
import { drawLines, lineOpacity, lineWidth, PAD } from "./link_lines.js";

const WHOLE = 1 << 22; // weights asked for with all their digits, for a table

const TITLE = 24; // pixels above each of two layers, for its name

const WHOLE_ROWS = 60; // tokens up to which a picture has all of them, whether or not they are in sight

/** Every panel, side by side: all of a short text, and of a longer one what is in sight. */
export function headsPicture(panels) {
  const scenes = panels.map((panel) => {
    const rows = Math.max(panel.querySide.labels.length, panel.keySide.labels.length - panel.view.shift);
    const [whole, { clientWidth, clientHeight }] = [rows * panel.row + 2 * PAD, panel.box];
    if (rows <= WHOLE_ROWS) return { ...panel.scene(clientWidth, whole), top: -PAD };
    return panel.scene(clientWidth, Math.min(clientHeight, whole));
  });
  const { ink, paper, font } = inks(panels[0].box);
  const top = panels.length > 1 ? TITLE : 0;
  const width = scenes.reduce((sum, scene) => sum + scene.width, 0);
  const height = top + Math.max(...scenes.map((scene) => scene.height));
  return onPaper(width, height, paper, (ctx) => {
    let x = 0;
    panels.forEach((panel, at) => {
      const scene = scenes[at];
      const shown = panel.shown(scene);
      ctx.save();
      ctx.translate(x, top);
      ctx.save();
      ctx.beginPath();
      ctx.rect(0, 0, scene.width, scene.height);
      ctx.clip();
      drawLines(ctx, scene, shown.links);
      panel.drawTokens(ctx, scene, shown);
      ctx.restore();
      if (top) {
        Object.assign(ctx, {
          fillStyle: ink,
          font: `600 14px ${font}`,
          textAlign: "center",
          textBaseline: "alphabetic",
        });
        ctx.fillText(layerTitle(panel.trace, panel.call), (scene.left + scene.right) / 2, -TITLE / 3);
      }
      ctx.restore();
      x += scene.width;
    });
  });
}

/** The heads' colours, how strong lines and squares are, and what is hidden. @returns {Legend} */
export function headsLegend(panel) {
  const { palette } = panel.context;
  const chosen = panel.view.focus().length > 0;
  const entries = panel.active.map((head) => ({ label: `head ${head}`, color: palette.head(head) }));
  const strokes = [0.05, 0.2, 0.5, 1].map((weight) => ({
    label: String(weight),
    width: lineWidth(weight),
    opacity: lineOpacity({ theme: panel.context.theme, chosen: true }, weight),
  }));
  const note = panel.muted.size
    ? `Lines from and to ${hiddenNames(panel)} are hidden; the others are the weights.`
    : "";
  if (!chosen) return { entries, note: note || "The stronger a line, the larger the weight." };
  return { entries, strokes, from: "0", to: "1", words: "weight of each head (squares), square-root scale", note };
}

const COLUMNS = ["layer", "head", "query", "query token", "key", "key token", "drawn", "weight"];

/** The links that are drawn, and those of hidden tokens beside them, with all digits of their weights. */
export async function headsTable(panels, signal) {
  const rows = await Promise.all(panels.map((panel) => linkRows(panel, signal)));
  return [COLUMNS, ...rows.flat()];
}

async function linkRows(panel, signal) {
  const scene = panel.scene();
  const all = { ...scene, muted: new Set(), mutedQueries: new Set() };
  const hidden = ({ query, key }) => panel.muted.has(key) || panel.mutedQueries.has(query);
  const shown = panel.shown(scene).links;
  const also = panel.muted.size ? panel.shown(all).links.filter(hidden) : [];
  const keyOf = ({ head, query, key }) => `${head} ${query} ${key}`;
  const drawn = new Set(shown.map(keyOf));
  const links = [...shown, ...also.filter((link) => !drawn.has(keyOf(link)))];
  const exact = await exactWeights(panel, links, signal);
  return links.map((link) => [
    panel.call.name,
    link.head,
    link.query,
    panel.querySide.labels[link.query],
    link.key,
    panel.keySide.labels[link.key],
    drawn.has(keyOf(link)) ? "" : "hidden",
    exact(link),
  ]);
}

/** A function that gives a link's weight as float32: the page itself draws from float16. */
async function exactWeights(panel, links, signal) {
  const { querySide, keySide, call } = panel;
  const positions = links.flatMap(({ query }) => querySide.groups[query]);
  const [first, last] = [Math.min(...positions), Math.max(...positions)];
  const rows = last - first + 1;
  if (!links.length || panel.rows.signed || !panel.rows.dense || call.heads * rows * call.keys > WHOLE)
    return ({ weight }) => weight;
  const path = `${callPath(panel.trace, call)}/weights`;
  const params = { entry: panel.view.state.entry ?? 0, rows: `${first}:${last + 1}`, type: "float32" };
  const { data } = await panel.context.source.array(path, params, signal);
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
