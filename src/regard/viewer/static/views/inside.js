// Inside: one layer and head of a small Transformer, matrix by matrix, as the model computed them.
//
// POST /api/inside answers {tokens, layers, heads, width, matrices: {name: rows}, steps: [{title, text, shows | product}],
// next?: [{piece, share}]}; a masked entry is null.
import { latest } from "../data/sources.js";
import { plain } from "../data/tokens.js";
import { inks, makeBoard, onPaper, place as placeOf, rotatedText, shortened } from "../draw/canvas.js";
import { bounded, choice, el, exact, headChoice, number, refill } from "../draw/elements.js";

/** @type {View} */
export const inside = {
  name: "inside",
  title: "Inside",
  hint: "One layer, step by step: from what it reads to what it writes",
  needs: "nothing",
  mount: (root, context) => {
    const models = context.about.models.filter((model) => model.layers > 0);
    return models.length ? new Inside(root, context, models) : nothing(root);
  },
};

const TEXTS = { generate: "My lord, the night is", translate: "My sister has a small black dog." };

function nothing(root) {
  const words =
    "This view computes one layer of a small Transformer, and none is here. Those that ship are shown by: regard view.";
  root.append(el("div.empty", el("p", words)));
  return { update() {}, destroy() {} };
}

class Inside {
  constructor(root, context, models) {
    this.context = context;
    this.models = models;
    this.answer = null;
    this.request = latest();
    this.asked = "";
    this.hover = null;
    /** @type {Box[]} */
    this.boxes = [];
    /** @type {Record<string, [number, number]>} */
    this.sizes = {};
    /** @type {Record<string, number>} */
    this.peaks = {};
    this.input = el("input", {
      type: "text",
      "aria-label": "Text",
      maxlength: 200,
      onchange: () => this.set({ text: this.input.value, step: this.settings.step }),
    });
    if (this.context.source.runs?.("/api/inside") === false) {
      this.input.readOnly = true;
      this.input.title = "A text that was prepared. For one of your own, install regard and run: regard view";
    }
    this.choosers = el("span.samples");
    this.controls = el("div.controls", this.input, this.choosers);
    this.list = el("div.inside-steps", { role: "group", "aria-label": "Steps", "data-arrows": true });
    this.text = el("p.inside-text", { role: "status" });
    this.stage = el("div.drawing");
    this.reading = el("p.footer");
    root.append(this.controls, el("div.inside-line", this.list), this.text, this.stage, this.reading);
    const label = "The matrices of this step: point at a number to read it";
    this.board = makeBoard(this.stage, { role: "img", "aria-label": label }, (pen, width, height) =>
      this.draw(pen, width, height),
    );
    this.board.node.addEventListener("pointermove", (event) => this.point(placeOf(event, this.board.node)));
    this.board.node.addEventListener("pointerdown", (event) => this.point(placeOf(event, this.board.node)));
    this.board.node.addEventListener("pointerleave", () => this.point(null));
    this.keys = [
      { key: "ArrowRight", text: "next step", run: () => this.go(this.step + 1) },
      { key: "ArrowLeft", text: "previous step", run: () => this.go(this.step - 1) },
    ];
    this.update();
  }

  /** This view's part of the state: {model, text, layer, head, step}. */
  get settings() {
    const given = this.context.state.get().inside ?? {};
    // Words say more than letters; a site has prepared the letters.
    const task = this.input.readOnly ? "generate" : "translate";
    const named = this.models.find((one) => one.name === given.model);
    const model = named ?? this.models.find((one) => one.task === task) ?? this.models[0];
    return {
      model,
      text: typeof given.text === "string" && given.text.trim() ? given.text : (TEXTS[model.task] ?? TEXTS.generate),
      layer: Math.trunc(bounded(given.layer, 0, model.layers - 1)),
      head: Math.trunc(bounded(given.head, 0, 64)),
      step: given.step == null ? null : Math.trunc(bounded(given.step, 0, Infinity)),
    };
  }

  set(patch) {
    this.context.state.set({ inside: { ...this.context.state.get().inside, ...patch } });
  }

  get step() {
    const { steps } = this.answer ?? { steps: [{ product: true }] };
    return Math.min(this.settings.step ?? steps.findIndex(({ product }) => product), steps.length - 1); // at first Q Kᵀ
  }

  go(step) {
    if (!this.answer) return;
    this.hover = null;
    this.set({ step: bounded(step, 0, this.answer.steps.length - 1) });
    this.context.announce(`${this.answer.steps[this.step].title}: ${this.answer.steps[this.step].text}`);
  }

  update() {
    const { model, text, layer, head } = this.settings;
    if (document.activeElement !== this.input) this.input.value = text;
    const asked = JSON.stringify([model.name, text, layer, head]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.ask({ model: model.name, text, layer, head });
    }
    this.show();
  }

  async ask(body) {
    this.text.textContent = "Computing …";
    try {
      const answer = await this.request((signal) => this.context.source.post("/api/inside", body, signal));
      if (!answer) return;
      this.answer = answer;
      this.sizes = Object.fromEntries(
        Object.entries(this.answer.matrices).map(([name, rows]) => [name, [rows.length, rows[0].length]]),
      );
      this.peaks = Object.fromEntries(
        Object.entries(this.answer.matrices).map(([name, rows]) => [
          name,
          rows.flat().reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 0) || 1,
        ]),
      );
      this.show();
    } catch (error) {
      this.text.textContent = error.message;
    }
  }

  show() {
    const { model, layer, head } = this.settings;
    const numbers = (count) => Array.from({ length: count }, (_, i) => [i, String(i)]);
    const names = this.models.map((one) => [one.name, one.title]);
    const stamp = JSON.stringify([model.name, layer, head, this.answer?.heads]);
    refill(this.choosers, stamp, () => [
      choice("Model", names, model.name, (name) => this.set({ model: name, layer: 0, head: 0 })),
      choice("Layer", numbers(model.layers), layer, (value) => this.set({ layer: Number(value) })),
      headChoice(this.answer?.heads ?? head + 1, head, (value) => this.set({ head: value })),
    ]);
    if (!this.answer) return;
    const step = this.answer.steps[this.step];
    this.list.replaceChildren(
      ...this.answer.steps.map(({ title, text }, at) =>
        el("button.chip", { title: text, "aria-pressed": String(at === this.step), onclick: () => this.go(at) }, title),
      ),
    );
    /** @type {HTMLElement} */ (this.list.children[this.step]).scrollIntoView?.({
      block: "nearest",
      inline: "nearest",
    });
    const last = this.step === this.answer.steps.length - 1 && this.answer.next;
    const next = last
      ? ` The last layer's last row predicts what comes next: ${last
          .slice(0, 4)
          .map(({ piece, share }) => `“${plain(piece)}” ${number(share)}`)
          .join(", ")}.`
      : "";
    this.text.textContent = `${this.step + 1}. ${step.text}${next}`;
    this.board.ask();
    this.read();
  }

  // Drawing

  draw(pen, width, height) {
    if (!this.answer) return;
    const step = this.answer.steps[this.step];
    const layout = laidOut(step, this.sizes, this.letters, width, height);
    this.boxes = layout.boxes;
    for (const box of layout.boxes) this.drawBox(pen, box);
  }

  /** The length of the longest token. */
  get letters() {
    return Math.max(...this.answer.tokens.map((token) => plain(token).length));
  }

  drawBox(pen, box) {
    const { matrices, tokens, width } = this.answer;
    drawMatrix(pen, box, {
      rows: matrices[box.name],
      peak: this.peaks[box.name],
      tokens,
      lit: this.hover ? litIn(box, this.hover) : {},
      outlined: box.name === "concat" ? [this.settings.head * width, width] : null,
      colors: inks(this.stage),
      palette: this.context.palette,
    });
  }

  point(at) {
    this.hover = at && cellAt(this.boxes, at);
    this.board.ask();
    this.read();
  }

  read() {
    this.reading.textContent = cellReading(this);
  }

  // Export and tests

  picture() {
    if (!this.answer) return null;
    const { width, height } = this.board.size;
    const layout = laidOut(this.answer.steps[this.step], this.sizes, this.letters, width, height);
    return onPaper(layout.width, layout.height, inks(this.stage).paper, (pen) => {
      for (const box of layout.boxes) this.drawBox(pen, box);
    });
  }

  legend() {
    return {
      signed: true,
      from: "−",
      to: "+",
      words: "each matrix on the scale of its largest number; weights from 0 to 1",
    };
  }

  caption() {
    const { model, text, layer, head } = this.settings;
    return `${model.title}, layer ${layer}, head ${head}: ${text}`;
  }

  table() {
    const step = this.answer?.steps[this.step];
    const names = step?.product ?? step?.shows ?? [];
    return names.flatMap((name) => [[name], ...this.answer.matrices[name]]);
  }

  drawn() {
    return (
      this.answer && {
        step: this.answer.steps[this.step].title,
        steps: this.answer.steps.map(({ title }) => title),
        matrices: this.answer.matrices,
        boxes: this.boxes,
        hover: this.hover && { name: this.hover.box.name, row: this.hover.row, column: this.hover.column },
        lit: this.hover && Object.fromEntries(this.boxes.map((box) => [box.name, litIn(box, this.hover)])),
        reading: this.reading.textContent,
      }
    );
  }

  destroy() {
    this.request.end();
    this.board.close();
  }
}

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
function hasTokenColumns(name) {
  return KEYS.includes(name);
}

/** Boxes of a step: `sizes` has [rows, columns] by name, `letters` is the length of the longest token.
 *
 * @returns {{boxes: Box[], width: number, height: number}}
 */
export function laidOut(step, sizes, letters, width, height) {
  const room = { side: bounded(LETTER * letters + 10, LABEL[0], LABEL[1]), top: letters > 1 ? SLANTED : UPRIGHT };
  const layout = step.product ? productLayout : rowLayout;
  return layout(step.product ?? step.shows, sizes, room, width, height);
}

/** The right factor above the result, the left one beside it: a cell of the result stands where its row and column meet. */
function productLayout([left, right, result], sizes, { side, top: above }, width, height) {
  const [rows, inner] = sizes[left];
  const columns = sizes[right][1];
  const top = TITLE + (hasTokenColumns(right) ? above : 0);
  const w = bounded((width - 2 * side - GAP) / (inner + columns), 3, LARGEST);
  const h = bounded((height - top - TITLE - GAP) / (inner + rows), 3, LARGEST);
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
    ? bounded((width - side - 8) / most(1), 1.5, LARGEST)
    : bounded((width - names.length * side - gaps) / all(1), 3, LARGEST);
  const h = stacked
    ? bounded((height - names.length * TITLE - gaps) / all(0), 4, LARGEST)
    : bounded((height - top - 8) / most(0), 4, LARGEST);
  let [x, y] = [side, top];
  const boxes = names.map((name) => {
    const [rows, columns] = sizes[name];
    const own = stacked ? bounded((width - side - 8) / columns, 1.5, LARGEST) : w;
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
function cellAt(boxes, { x, y }) {
  for (const box of boxes) {
    const [column, row] = [Math.floor((x - box.x) / box.cell[0]), Math.floor((y - box.y) / box.cell[1])];
    if (row >= 0 && column >= 0 && row < box.rows && column < box.columns) return { box, row, column };
  }
  return null;
}

/** What is lit in a box while a cell of another, or of itself, is pointed at: {row?, column?}, either or both. */
function litIn(box, { box: own, row, column }) {
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

const RAMPS = ["W"]; // matrices of weights; the others have signs

const ROOM = 90; // pixels that the title of a narrow matrix may take

/** `lit` is {row?, column?}; `outlined` the first column and the number of columns that are outlined.
 *
 * @param {Pen} pen
 * @param {Box} box
 * @param {{rows: (number | null)[][], peak: number, tokens: string[], lit: {row?: number, column?: number},
 *   outlined: number[] | null, colors: Record<string, string>, palette: Palette}} matrix
 */
function drawMatrix(pen, box, { rows, peak, tokens, lit, outlined, colors, palette }) {
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
    rotatedText(pen, shortened(pen, label, box.room.top), box.x + (c + 0.5) * w, box.y - 4, -Math.PI / 3);
  });
}

/** The number that is pointed at, in words. `view` is the Inside view. */
function cellReading(view) {
  if (!view.answer || !view.hover) {
    return "Point at a number, or tap it: its row and its column light up.";
  }
  const { box, row, column } = view.hover;
  const value = view.answer.matrices[box.name][row][column];
  const square = hasTokenColumns(box.name);
  const token = (i) => `“${plain(view.answer.tokens[i])}”`;
  const where =
    box.role === "right"
      ? `number ${row}, ${token(column)}`
      : `${token(row)}, ${square ? token(column) : `number ${column}`}`;
  const said = value === null ? "masked" : signed(value);
  return `${box.name} of ${where} = ${said}${arithmetic(view.answer, view.answer.steps[view.step], view.hover)}`;
}

const signed = (x) => (x >= 0 ? exact(x) : `−${exact(-x)}`);
const TERMS = 3; // products that are written out

/** How a number comes about: its largest products, or its exponential over the sum of its row's. */
function arithmetic({ matrices }, { product, shows }, { box, row, column }) {
  if (box.role === "result") {
    const [left, right] = product.map((name) => matrices[name]);
    const terms = left[row]
      .map((x, k) => [x, right[k][column]])
      .sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1]));
    const some = terms.slice(0, TERMS).map(([a, b]) => `${signed(a)} · ${signed(b)}`);
    return `: the sum of ${terms.length} products, ${some.join(" + ")} + …`;
  }
  if (box.name !== "W" || !shows) return "";
  const scores = matrices[shows[0]][row];
  const sum = scores.reduce((total, x) => total + (x === null ? 0 : Math.exp(x)), 0);
  return scores[column] === null ? ": masked" : `: e^${signed(scores[column])} / ${signed(sum)}, the sum of its row`;
}
