// Where the matrices of one step stand on the page, and what a cell of one has to do with the cells of the others.

const GAP = 34; // pixels between matrices
const LABEL = [22, 64]; // pixels for the tokens beside a matrix: at least, at most
const LETTER = 8; // pixels of a letter, about
const TITLE = 22; // pixels for the name above it
const SLANTED = 40; // pixels for tokens of several letters above a matrix, between it and its name
const UPRIGHT = 16; // and for tokens of one letter
const LARGEST = 72; // pixels of a cell
const WIDE = 70; // columns from which matrices stand one below the other

const KEYS = ["Kᵀ", "QKᵀ", "QKᵀ / √d", "masked", "W"]; // matrices with a column for each token

/** `room` is what the tokens have beside the matrix, and above it where its columns are tokens.
 *
 * @typedef {{name: string, rows: number, columns: number, x: number, y: number, cell: [number, number], role: string,
 *   room: {side: number, top: number}}} Box
 */

/** Whether the columns of a matrix are tokens. */
export function hasTokenColumns(name) {
  return KEYS.includes(name);
}

/** Boxes of a step: `sizes` has [rows, columns] by name, `letters` is the length of the longest token.
 *
 * @returns {{boxes: Box[], width: number, height: number}}
 */
export function laidOut(step, sizes, letters, width, height) {
  const room = { side: bound(LETTER * letters + 10, LABEL[0], LABEL[1]), top: letters > 1 ? SLANTED : UPRIGHT };
  const layout = step.product ? productLayout : rowLayout;
  return layout(step.product ?? step.shows, sizes, room, width, height);
}

/** The right factor above the result, the left one beside it: a cell of the result stands where its row and column meet. */
function productLayout([left, right, result], sizes, { side, top: above }, width, height) {
  const [rows, inner] = sizes[left];
  const columns = sizes[right][1];
  const top = TITLE + (hasTokenColumns(right) ? above : 0);
  const w = bound((width - 2 * side - GAP) / (inner + columns), 3, LARGEST);
  const h = bound((height - top - TITLE - GAP) / (inner + rows), 3, LARGEST);
  const [x, y] = [side + inner * w + GAP, top + inner * h + GAP];
  const room = { side, top: 0 };
  const boxes = [
    { name: right, rows: inner, columns, x, y: top, cell: [w, h], role: "right", room: { side, top: top - TITLE } },
    { name: left, rows, columns: inner, x: side, y, cell: [w, h], role: "left", room },
    { name: result, rows, columns, x, y, cell: [w, h], role: "result", room },
  ];
  return { boxes: /** @type {Box[]} */ (boxes), width: x + columns * w + 8, height: y + rows * h + 8 };
}

function rowLayout(names, sizes, { side, top: above }, width, height) {
  const stacked = names.some((name) => sizes[name][1] > WIDE);
  const all = (side) => names.reduce((sum, name) => sum + sizes[name][side], 0);
  const most = (side) => Math.max(...names.map((name) => sizes[name][side]));
  const gaps = (names.length - 1) * GAP;
  const top = TITLE + (names.some(hasTokenColumns) && !stacked ? above : 0);
  const w = stacked
    ? bound((width - side - 8) / most(1), 1.5, LARGEST)
    : bound((width - names.length * side - gaps) / all(1), 3, LARGEST);
  const h = stacked
    ? bound((height - names.length * TITLE - gaps) / all(0), 4, LARGEST)
    : bound((height - top - 8) / most(0), 4, LARGEST);
  let [x, y] = [side, top];
  const boxes = names.map((name) => {
    const [rows, columns] = sizes[name];
    const own = stacked ? bound((width - side - 8) / columns, 1.5, LARGEST) : w;
    const room = { side, top: hasTokenColumns(name) ? top - TITLE : 0 };
    const box = { name, rows, columns, x, y, cell: [own, h], role: "", room };
    if (stacked) y += rows * h + GAP;
    else x += columns * w + GAP + side;
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
