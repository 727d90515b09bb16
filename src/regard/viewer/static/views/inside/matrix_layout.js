// Where the matrices of one step stand on the page, and what a cell of one has to do with the cells of the others.

const GAP = 34; // pixels between matrices
const LABEL = 64; // pixels for the tokens beside a matrix
const TITLE = 22; // pixels for the name above it
const LARGEST = 44; // pixels of a cell
const WIDE = 70; // columns from which matrices stand one below the other

/** @typedef {{name: string, rows: number, columns: number, x: number, y: number, cell: [number, number], role: string}} Box */

/** Boxes of a step: `sizes` has [rows, columns] by name. @returns {{boxes: Box[], width: number, height: number}} */
export function laidOut(step, sizes, width, height) {
  return step.product ? productLayout(step.product, sizes, width, height) : rowLayout(step.shows, sizes, width, height);
}

/** The right factor above the result, the left one beside it: a cell of the result stands where its row and column meet. */
function productLayout([left, right, result], sizes, width, height) {
  const [rows, inner] = sizes[left];
  const columns = sizes[right][1];
  const w = bound((width - 2 * LABEL - GAP) / (inner + columns), 3, LARGEST);
  const h = bound((height - 2 * TITLE - GAP) / (inner + rows), 3, LARGEST);
  const [x, y] = [LABEL + inner * w + GAP, TITLE + inner * h + GAP];
  const boxes = [
    { name: right, rows: inner, columns, x, y: TITLE, cell: [w, h], role: "right" },
    { name: left, rows, columns: inner, x: LABEL, y, cell: [w, h], role: "left" },
    { name: result, rows, columns, x, y, cell: [w, h], role: "result" },
  ];
  return { boxes: /** @type {Box[]} */ (boxes), width: x + columns * w + 8, height: y + rows * h + 8 };
}

function rowLayout(names, sizes, width, height) {
  const stacked = names.some((name) => sizes[name][1] > WIDE);
  const all = (side) => names.reduce((sum, name) => sum + sizes[name][side], 0);
  const most = (side) => Math.max(...names.map((name) => sizes[name][side]));
  const gaps = (names.length - 1) * GAP;
  const w = stacked
    ? bound((width - LABEL - 8) / most(1), 1.5, LARGEST)
    : bound((width - names.length * LABEL - gaps) / all(1), 3, LARGEST);
  const h = stacked
    ? bound((height - names.length * TITLE - gaps) / all(0), 4, LARGEST)
    : bound((height - TITLE - 8) / most(0), 4, LARGEST);
  let [x, y] = [LABEL, TITLE];
  const boxes = names.map((name) => {
    const [rows, columns] = sizes[name];
    const own = stacked ? bound((width - LABEL - 8) / columns, 1.5, LARGEST) : w;
    const box = { name, rows, columns, x, y, cell: [own, h], role: "" };
    if (stacked) y += rows * h + GAP;
    else x += columns * w + GAP + LABEL;
    return box;
  });
  const right = Math.max(...boxes.map((box) => box.x + box.columns * box.cell[0]));
  return { boxes, width: right + 8, height: Math.max(...boxes.map((box) => box.y + box.rows * h)) + 8 };
}

/** The cell under a place: {box, row, column}, or null. @param {Box[]} boxes */
export function cellAt(boxes, { x, y }) {
  for (const box of boxes) {
    const [column, row] = [Math.floor((x - box.x) / box.cell[0]), Math.floor((y - box.y) / box.cell[1])];
    if (row >= 0 && column >= 0 && row < box.rows && column < box.columns) return { box, row, column };
  }
  return null;
}

/** What is lit in a box while a cell of another, or of itself, is pointed at: {row?, column?}, either or both. */
export function litIn(box, { box: own, row, column }) {
  if (box.name === own.name) return { row, column };
  if (!box.role) return { row, ...(box.columns === own.columns ? { column } : {}) };
  const pair = `${own.role} ${box.role}`;
  const parts = {
    "result left": { row },
    "result right": { column },
    "left result": { row },
    "left right": { row: column },
    "right result": { column },
    "right left": { column: row },
  };
  return parts[pair] ?? {};
}

function bound(x, least, most) {
  return Math.max(least, Math.min(most, x));
}
