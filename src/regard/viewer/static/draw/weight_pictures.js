// Pictures of weights: an alignment as a grid (target down, source across), shaded words, an overlay on a picture.
import { inks, makeBoard, place, rotatedText, sheet, shortened } from "./canvas.js";
import { bounded, exact } from "./elements.js";

const [SMALL, LARGE] = [12, 36]; // pixels of a cell
const EDGE = { top: 72, right: 30, bottom: 8 };
const LABEL = 7; // pixels of a letter
const LONGEST = 15;

/** `pointed({row, column} | null)` as the pointer or the arrow keys go from cell to cell. */
export class Alignment {
  constructor(host, context, pointed) {
    this.host = host;
    this.context = context;
    this.pointed = pointed;
    this.rows = [];
    this.columns = [];
    this.lit = null;
    this.board = makeBoard(host, { tabindex: "0", role: "application", "data-arrows": true }, (pen) => this.draw(pen));
    const { node } = this.board;
    node.addEventListener("pointermove", (event) => this.point(this.under(place(event, node))));
    node.addEventListener("pointerleave", () => this.point(null));
    node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step || !this.rows.length) return;
      event.preventDefault();
      const { row, column } = this.lit ?? { row: 0, column: 0 };
      const r = bounded((row ?? 0) + step[0], 0, this.rows.length - 1);
      const c = bounded((column ?? 0) + step[1], 0, this.columns.length - 1);
      this.point({ row: r, column: c });
      this.context.announce(`${this.rows[r]} looks at ${this.columns[c]}: ${exact(this.weights[r][c])}`);
    });
  }

  /** Labels of rows and columns, and one list of weights per row. */
  show(rows, columns, weights, name) {
    this.rows = rows;
    this.columns = columns;
    this.weights = weights;
    this.board.node.setAttribute(
      "aria-label",
      `${name}: ${rows.length} by ${columns.length} weights; arrow keys read them`,
    );
    this.board.ask();
  }

  /** Light a row, a column or a cell, {row?, column?}, or several of either: {rows} or {columns}. */
  light(lit) {
    this.lit = lit;
    this.board.ask();
  }

  point(cell) {
    if (cell?.row === this.lit?.row && cell?.column === this.lit?.column) return;
    this.pointed(cell);
  }

  /** Where the cells begin: after the labels of the rows. */
  get left() {
    const longest = Math.max(0, ...this.rows.map((text) => Math.min(LONGEST, text.length)));
    return Math.min(110, 22 + longest * LABEL);
  }

  get cell() {
    const { width, height } = this.board.size;
    const across = (width - this.left - EDGE.right) / Math.max(1, this.columns.length);
    const down = (height - EDGE.top - EDGE.bottom) / Math.max(1, this.rows.length);
    return Math.max(SMALL, Math.min(LARGE, across, down));
  }

  /** How wide it is drawn where there is room. */
  get width() {
    return this.left + this.columns.length * LARGE + EDGE.right;
  }

  /** How high it is drawn in the width that it has. */
  get height() {
    const across = (this.host.clientWidth - this.left - EDGE.right) / Math.max(1, this.columns.length);
    return EDGE.top + this.rows.length * Math.min(LARGE, Math.max(SMALL, across)) + EDGE.bottom;
  }

  under({ x, y }) {
    const [column, row] = [Math.floor((x - this.left) / this.cell), Math.floor((y - EDGE.top) / this.cell)];
    return row >= 0 && column >= 0 && row < this.rows.length && column < this.columns.length ? { row, column } : null;
  }

  draw(pen) {
    const { ink, soft, line, accent, font } = inks(this.host);
    const { cell, left, lit } = this;
    this.rows.forEach((_, r) => {
      this.columns.forEach((_, c) => {
        pen.fillStyle = this.context.palette.ramp(Math.sqrt(this.weights[r][c])); // by area to the eye, as is usual
        pen.fillRect(left + c * cell, EDGE.top + r * cell, cell - 1, cell - 1);
      });
    });
    const [rows, columns] = [lit?.rows ?? [lit?.row], lit?.columns ?? [lit?.column]];
    Object.assign(pen, { strokeStyle: line, lineWidth: 1 });
    pen.strokeRect(left - 0.5, EDGE.top - 0.5, this.columns.length * cell, this.rows.length * cell);
    const write = (text, here, x, y, angle) => {
      Object.assign(pen, {
        fillStyle: here ? ink : soft,
        font: `${here ? "600 " : ""}13px ${font}`,
        textBaseline: "middle",
      });
      rotatedText(pen, text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text, x, y, angle);
    };
    pen.textAlign = "right";
    this.rows.forEach((text, r) => write(text, rows.includes(r), left - 8, EDGE.top + (r + 0.5) * cell, 0));
    pen.textAlign = "left";
    this.columns.forEach((text, c) =>
      write(text, columns.includes(c), left + (c + 0.5) * cell, EDGE.top - 8, -Math.PI / 4),
    );
    pen.textBaseline = "alphabetic";
    if (!lit) return;
    Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
    for (const column of columns)
      for (const row of rows) {
        const [x, wide] = column === undefined ? [0, this.columns.length] : [column, 1];
        const [y, high] = row === undefined ? [0, this.rows.length] : [row, 1];
        pen.strokeRect(left + x * cell, EDGE.top + y * cell, wide * cell - 1, high * cell - 1);
      }
  }

  close() {
    this.board.close();
  }
}

// A text of tokens, each with its shade: as elements on the page, and drawn for export.

const [HEIGHT, GAP, PAD] = [24, 4, 6];

/** Shade an element by x, 0 to 1, or −1 to 1 where it is `signed`; below a fiftieth it stays plain. */
export function shade(node, x, palette, signed = false) {
  const [fill, over] = signed ? [palette.signed, palette.overSigned] : [palette.ramp, palette.over];
  const plain = Math.abs(x) <= 0.02;
  node.style.background = plain ? "" : fill(x);
  node.style.color = plain ? "" : over(x);
}

/** Draw labels in lines no wider than `width`, from (x, y) down; returns the y below the last line. */
export function drawFlow(ctx, items, x, y, width, palette, colors, signed = false) {
  const [fill, over] = signed ? [palette.signed, palette.overSigned] : [palette.ramp, palette.over];
  let [left, top] = [x, y];
  ctx.font = `14px ${colors.font}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { label, shade: amount } of items) {
    const text = shortened(ctx, label, width - 2 * PAD);
    const wide = ctx.measureText(text).width + 2 * PAD;
    if (left + wide > x + width && left > x) [left, top] = [x, top + HEIGHT + GAP];
    if (Math.abs(amount) > 0.02) {
      ctx.fillStyle = fill(amount);
      ctx.fillRect(left, top, wide, HEIGHT);
    }
    ctx.fillStyle = Math.abs(amount) > 0.02 ? over(amount) : colors.ink;
    ctx.fillText(text, left + PAD, top + HEIGHT / 2);
    left += wide + GAP;
  }
  return top + HEIGHT + GAP;
}

// Weights over a picture's grid: the picture is dark where the model did not look. Without a picture, cells of colour.

/** The rectangle in which a picture of this shape fits. */
export function within(width, height, ratio) {
  const wide = Math.min(width, height * ratio);
  return { x: (width - wide) / 2, y: (height - wide / ratio) / 2, width: wide, height: wide / ratio };
}

/** Draw into `box` of `pen`. `weights` are h·w numbers, rows first; `image` may be null; `smooth` blends the cells. */
export function drawOver(pen, box, { image, weights, grid: [rows, columns], smooth, palette }) {
  const most = Math.max(...weights) || 1;
  const small = sheet(columns, rows);
  const bytes = small.createImageData(columns, rows);
  weights.forEach((weight, i) => {
    const share = weight / most;
    const at = 3 * Math.round(255 * Math.sqrt(share));
    bytes.data.set(
      image ? [0, 0, 0, Math.round(215 * (1 - Math.sqrt(share)))] : [...palette.bytes.slice(at, at + 3), 255],
      4 * i,
    );
  });
  small.putImageData(bytes, 0, 0);
  const scale = 2;
  const brush = sheet(Math.round(box.width * scale), Math.round(box.height * scale));
  const whole = brush.canvas;
  if (image) brush.drawImage(image, 0, 0, whole.width, whole.height);
  brush.imageSmoothingEnabled = Boolean(smooth);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(small.canvas, 0, 0, whole.width, whole.height);
  pen.drawImage(whole, box.x, box.y, box.width, box.height);
}
