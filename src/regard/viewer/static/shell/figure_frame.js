// A figure for a paper or a slide: a view's picture with its title, model and text above, and what its colours mean below.
import { inks, onPaper, shortened } from "../draw/canvas.js";
import { textLines } from "../draw/line_breaks.js";

const EDGE = 20; // pixels
const LINE = 20;
const LETTER = 7.2; // pixels of a letter of the text, on average
const LEAST = 420; // pixels of width
const MOST_LINES = 4;
const BAR = { width: 220, height: 10 };

/** `title` is a line, `text` what the model read, `legend` what the view's colours mean: see types/viewer.d.ts (Legend).
 *
 * @param {{width: number, height: number, draw(pen: Pen): void}} picture
 * @param {{title: string, text: string, legend: Legend | null, root: HTMLElement, palette: Palette}} words
 */
export function framed(picture, { title, text, legend, root, palette }) {
  const colors = inks(root);
  const width = Math.max(LEAST, picture.width + 2 * EDGE);
  const lines = text ? textLines(text, Math.floor((width - 2 * EDGE) / LETTER)) : [];
  const kept = lines.length > MOST_LINES ? [...lines.slice(0, MOST_LINES - 1), `${lines[MOST_LINES - 1]} …`] : lines;
  const top = EDGE + 24 + LINE * kept.length + 8;
  const below = legend ? legendHeight(legend, width) : 0;
  const height = top + picture.height + below + EDGE;
  return onPaper(width, height, colors.paper, (pen) => {
    Object.assign(pen, { textAlign: "left", textBaseline: "alphabetic", globalAlpha: 1 });
    Object.assign(pen, { fillStyle: colors.ink, font: `600 16px ${colors.font}` });
    pen.fillText(shortened(pen, title, width - 2 * EDGE), EDGE, EDGE + 14);
    Object.assign(pen, { fillStyle: colors.soft, font: `13px ${colors.font}` });
    kept.forEach((line, at) => pen.fillText(line, EDGE, EDGE + 36 + LINE * at));
    pen.save();
    pen.translate((width - picture.width) / 2, top);
    picture.draw(pen);
    pen.restore();
    if (legend) drawLegend(pen, legend, top + picture.height + 14, width, colors, palette);
    Object.assign(pen, { textAlign: "right", fillStyle: colors.soft, font: `11px ${colors.font}` });
    pen.fillText("regard", width - EDGE, height - 8);
  });
}

const ENTRY = 76; // pixels of one head of a legend

function perLine(width) {
  return Math.max(1, Math.floor((width - 2 * EDGE) / ENTRY));
}

function legendHeight(legend, width) {
  const rows = legend.entries ? Math.ceil(legend.entries.length / perLine(width)) : 0;
  return 18 + LINE * (rows + (legend.strokes ? 1 : 0) + (hasRamp(legend) ? 2 : 0) + (legend.note ? 1 : 0));
}

function hasRamp(legend) {
  return !legend.entries || legend.words !== undefined;
}

/** Heads and their colours, how strong a line is, a ramp of colours, a remark: those that the legend has, one below another. */
function drawLegend(pen, legend, y, width, colors, palette) {
  Object.assign(pen, { textAlign: "left", textBaseline: "middle", font: `12px ${colors.font}` });
  if (legend.entries) {
    legend.entries.forEach(({ label, color }, at) => {
      const [x, row] = [EDGE + (at % perLine(width)) * ENTRY, y + LINE * Math.floor(at / perLine(width))];
      pen.fillStyle = color;
      pen.fillRect(x, row - 6, 12, 12);
      pen.fillStyle = colors.ink;
      pen.fillText(label, x + 18, row);
    });
    y += LINE * Math.ceil(legend.entries.length / perLine(width));
  }
  if (legend.strokes) y = drawStrokes(pen, legend.strokes, y, colors);
  if (hasRamp(legend)) y = drawRamp(pen, legend, y, colors, palette);
  if (!legend.note) return;
  Object.assign(pen, { textAlign: "left", fillStyle: colors.soft, font: `12px ${colors.font}` });
  pen.fillText(shortened(pen, legend.note, width - 2 * EDGE), EDGE, y);
}

/** Lines as strong as some weights. */
function drawStrokes(pen, strokes, y, colors) {
  pen.fillStyle = colors.soft;
  pen.fillText("a line of weight", EDGE, y);
  strokes.forEach(({ label, width, opacity }, at) => {
    const x = EDGE + 100 + 78 * at;
    Object.assign(pen, { strokeStyle: colors.ink, lineWidth: width, globalAlpha: opacity });
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + 34, y);
    pen.stroke();
    Object.assign(pen, { globalAlpha: 1, fillStyle: colors.ink });
    pen.fillText(label, x + 40, y);
  });
  return y + LINE;
}

function drawRamp(pen, legend, y, colors, palette) {
  for (let x = 0; x < BAR.width; x += 2) {
    pen.fillStyle = legend.signed ? palette.signed((2 * x) / BAR.width - 1) : palette.ramp(x / BAR.width);
    pen.fillRect(EDGE + x, y - BAR.height / 2, 2, BAR.height);
  }
  Object.assign(pen, { strokeStyle: colors.line, lineWidth: 1 });
  pen.strokeRect(EDGE, y - BAR.height / 2, BAR.width, BAR.height);
  pen.fillStyle = colors.ink;
  pen.fillText(legend.from ?? "0", EDGE, y + 16);
  pen.textAlign = "right";
  pen.fillText(legend.to ?? "1", EDGE + BAR.width, y + 16);
  pen.textAlign = "left";
  pen.fillStyle = colors.soft;
  pen.fillText(legend.words ?? "", EDGE + BAR.width + 12, y);
  return y + 2 * LINE;
}
