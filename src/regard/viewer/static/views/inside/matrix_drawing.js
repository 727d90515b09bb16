// One matrix of the Inside view: its cells, its name, its tokens, and what is lit in it.
import { plain } from "../../data/tokens.js";
import { shortened } from "../../draw/canvas.js";

const RAMPS = ["W"]; // matrices of weights; the others have signs

const ROOM = 90; // pixels that the title of a narrow matrix may take

/** `lit` is {row?, column?}; `outlined` the first column and the number of columns that are outlined.
 *
 * @param {Pen} pen
 * @param {import("./matrix_layout.js").Box} box
 * @param {{rows: (number | null)[][], peak: number, tokens: string[], lit: {row?: number, column?: number},
 *   outlined: number[] | null, colors: Record<string, string>, palette: Palette}} matrix
 */
export function drawMatrix(pen, box, { rows, peak, tokens, lit, outlined, colors, palette }) {
  const [w, h] = box.cell;
  const color = RAMPS.includes(box.name) ? (x) => palette.ramp(Math.sqrt(x)) : (x) => palette.signed(x / peak);
  rows.forEach((row, r) => {
    row.forEach((value, c) => {
      pen.fillStyle = value === null ? colors.faint : color(value);
      pen.fillRect(box.x + c * w, box.y + r * h, w > 5 ? w - 1 : w, h > 5 ? h - 1 : h);
    });
  });
  Object.assign(pen, { strokeStyle: colors.line, lineWidth: 1 });
  pen.strokeRect(box.x - 0.5, box.y - 0.5, box.columns * w, box.rows * h);
  const title = `${box.name}  `;
  Object.assign(pen, { textBaseline: "middle", textAlign: "left", fillStyle: colors.ink });
  pen.font = `600 13px ${colors.font}`;
  const above = box.y - box.room.top - 10;
  pen.fillText(title, box.x, above);
  const after = box.x + pen.measureText(title).width;
  Object.assign(pen, { fillStyle: colors.soft, font: `11px ${colors.font}` });
  const size = `${box.rows} × ${box.columns}`;
  const fits = after + pen.measureText(size).width <= box.x + Math.max(box.columns * w, ROOM);
  if (fits) pen.fillText(size, after, above);
  if (box.role !== "right" && h >= 9) {
    Object.assign(pen, { textAlign: "right", font: `${Math.min(14, h)}px ${colors.font}` });
    tokens.forEach((token, r) => {
      pen.fillText(shortened(pen, plain(token), box.room.side - 8), box.x - 6, box.y + (r + 0.5) * h);
    });
  }
  if (box.room.top && w >= 6) drawColumns(pen, box, tokens, colors);
  Object.assign(pen, { strokeStyle: colors.accent, lineWidth: 2 });
  if (outlined) pen.strokeRect(box.x + outlined[0] * w, box.y, outlined[1] * w, box.rows * h);
  if (lit.row !== undefined) pen.strokeRect(box.x, box.y + lit.row * h, box.columns * w, h);
  if (lit.column !== undefined) pen.strokeRect(box.x + lit.column * w, box.y, w, box.rows * h);
}

/** The tokens above their columns; slanted where one is wider than its column. */
function drawColumns(pen, box, tokens, colors) {
  const [w] = box.cell;
  Object.assign(pen, { fillStyle: colors.soft, font: `${Math.min(13, w + 3)}px ${colors.font}`, textAlign: "center" });
  const labels = tokens.map(plain);
  if (labels.every((label) => pen.measureText(label).width <= w + 2)) {
    labels.forEach((label, c) => {
      pen.fillText(label, box.x + (c + 0.5) * w, box.y - 8);
    });
    return;
  }
  pen.textAlign = "left";
  labels.forEach((label, c) => {
    pen.save();
    pen.translate(box.x + (c + 0.5) * w, box.y - 4);
    pen.rotate(-Math.PI / 3);
    pen.fillText(shortened(pen, label, box.room.top), 0, 0);
    pen.restore();
  });
}
