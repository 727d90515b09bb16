// The Heads view as a picture and as a table.
import { inks, onPaper } from "../../draw/canvas.js";
import { drawLines, drawTokens, PAD } from "./link_lines.js";

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

/** The links that are drawn. */
export function headsTable(view) {
  const scene = view.scene(view.box.clientWidth, view.box.clientHeight);
  const rows = view
    .shown(scene)
    .links.map((link) => [
      view.call.name,
      link.head,
      link.query,
      view.querySide.labels[link.query],
      link.key,
      view.keySide.labels[link.key],
      link.weight,
    ]);
  return [["layer", "head", "query", "query token", "key", "key token", "weight"], ...rows];
}
