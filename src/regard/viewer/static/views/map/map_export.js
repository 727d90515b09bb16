// The Map view as a picture and as a table.
import { inks, onPaper } from "../../draw/canvas.js";
import { POOLS } from "./map_sidebar.js";

export function mapPicture(view) {
  const sizes = view.panels.map((panel) => panel.board.size);
  const { ink, paper, font } = inks(view.controls.root);
  const [width, height] = [sizes.reduce((sum, size) => sum + size.width, 0), sizes[0].height + 44];
  const { titles } = view.look();
  const draw = (pen) => {
    let x = 0;
    view.panels.forEach((panel, at) => {
      pen.save();
      pen.translate(x, 20);
      panel.picture(pen);
      Object.assign(pen, { fillStyle: ink, font: `600 13px ${font}`, textAlign: "left" });
      pen.fillText(titles[at], 16, 0);
      pen.restore();
      x += sizes[at].width;
    });
    Object.assign(pen, { fillStyle: ink, font: `12px ${font}`, textAlign: "left" });
    pen.fillText(view.aside.caption.textContent, 16, height - 10);
  };
  return onPaper(width, height, paper, draw);
}

/** The cells in sight, of every map shown. */
export function mapTable(view) {
  const { level, pool, titles } = view.look();
  const cell = 2 ** level;
  const inSight = (from, to, most) => {
    const start = Math.max(0, Math.floor(from / cell)) * cell;
    return Array.from(
      { length: Math.max(0, Math.ceil((Math.min(to, most) - start) / cell)) },
      (_, i) => start + i * cell,
    );
  };
  const name = (tokens, i) => `${i} ${tokens[i]}`;
  return view.panels.flatMap((panel, at) => {
    const { area, call, sides } = panel;
    const [from, to] = [panel.under(area.x, area.y), panel.under(area.x + area.width, area.y + area.height)];
    const columns = inSight(from.column, to.column, call.keys);
    const rows = inSight(from.row, to.row, call.queries);
    return [
      [`${titles[at]}, ${cell === 1 ? "weights" : `${POOLS[pool]} of ${cell} × ${cell}`}`],
      ["", ...columns.map((column) => name(sides.key, column))],
      ...rows.map((row) => [
        name(sides.query, row),
        ...columns.map((column) => panel.read({ row, column })?.value ?? ""),
      ]),
    ];
  });
}
