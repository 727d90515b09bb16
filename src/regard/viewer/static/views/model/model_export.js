// The Model view as a picture (small maps, what they are called, and what they do) and as a table.
import { number } from "../../draw/numbers.js";

const [SIZE, GAP, LINE] = [64, 8, 12]; // pixels
const LETTER = 6; // pixels of one, at most on average
const LETTERS = 12; // that fit below a map
const ACROSS = 12; // maps in a row, where they are sorted

/** `cells` in order, each with call, head, canvas, caption, score and badges; `rows`: [[call, its title], …] or null. */
export function modelPicture(cells, rows, style) {
  const across = rows ? Math.max(...rows.map(([call]) => call.heads)) : ACROSS;
  const top = rows?.some(([, title]) => title) ? LINE + 4 : 0;
  const texts = new Map(cells.map((cell) => [cell, [...wrapped(cell.caption), ...below(cell)]]));
  const high = top + SIZE + LINE * Math.max(...[...texts.values()].map((lines) => lines.length)) + GAP;
  const placed = cells.map((cell, at) => {
    const [x, y] = rows
      ? [cell.head, rows.findIndex(([call]) => call === cell.call)]
      : [at % across, Math.floor(at / across)];
    return { cell, x: GAP + x * (SIZE + GAP), y: GAP + y * high };
  });
  const title = Math.max(0, ...(rows ?? []).map(([, words]) => words.length)) * LETTER;
  const width = GAP + Math.max(across * (SIZE + GAP), title + GAP);
  const height = GAP + Math.max(...placed.map(({ y }) => y)) + high;
  const of = (name) => style.getPropertyValue(name).trim();
  const draw = (ctx) => {
    ctx.fillStyle = of("--paper");
    ctx.fillRect(0, 0, width, height);
    ctx.font = `10px ${of("--sans")}`;
    ctx.textBaseline = "top";
    ctx.imageSmoothingEnabled = false;
    for (const { cell, x, y } of placed) ctx.drawImage(cell.canvas, x, y + top, SIZE, SIZE);
    ctx.fillStyle = of("--ink");
    for (const { cell, x, y } of placed)
      texts.get(cell).forEach((line, at) => ctx.fillText(line, x, y + top + SIZE + 3 + at * LINE));
    rows?.forEach(([, title], at) => title && ctx.fillText(title, GAP, GAP + at * high));
  };
  return { width, height, draw };
}

function below({ score, badges }) {
  return score == null ? badges.map(({ label }) => label) : [number(score)];
}

/** Lines of a name: broken after its dots, and inside a part only where that is longer than a line. */
function wrapped(name) {
  const parts = /** @type {string[]} */ (name.match(/[^.]*\.?/g));
  const lines = [""];
  for (const part of parts.flatMap((piece) => piece.match(new RegExp(`.{1,${LETTERS}}`, "g")) ?? [])) {
    const last = lines[lines.length - 1];
    if (last && last.length + part.length > LETTERS) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines;
}

/** A row for each head, in this order: its statistics, the scores of its patterns, and its labels. */
export function modelTable(cells, order) {
  const statistics = Object.keys(cells[0].values);
  const patterns = Object.keys(cells.find((cell) => cell.scores)?.scores ?? {}).filter(
    (name) => !statistics.includes(name),
  );
  const rows = order.map((cell) => [
    cell.call.name,
    cell.head,
    ...statistics.map((name) => cell.values[name]),
    ...patterns.map((name) => cell.scores?.[name]),
    cell.labels.join("; "),
  ]);
  return [["layer", "head", ...statistics, ...patterns, "labels"], ...rows];
}
