// Picture: where a captioner looked for each word, or where the queries of a vision model look, over the picture.
//
// POST /api/caption answers {text, words, grid: [h, w], weights: one list of h·w per word, picture: a data URL}. A call
// of a trace has `grid: [h, w]` where its keys are cells of a picture, the last h·w of them, rows first.
import { latest, samplesOf } from "../data/sources.js";
import { callPath, fileParts, plain } from "../data/tokens.js";
import { context2d, inks, makeBoard, onPaper, place, textLines } from "../draw/canvas.js";
import { bounded, callChoice, el, headChoice, makeDrop, number, refill, tick } from "../draw/elements.js";
import { drawOver, within } from "../draw/weight_pictures.js";

/** @type {View} */
export const picture = {
  name: "picture",
  title: "Picture",
  hint: "Weights over a picture, word by word or cell by cell",
  needs: "nothing",
  mount: (root, context) => new PictureView(root, context),
};

const SCENES =
  "The captioner that ships knows scenes of shapes. Choose one of these, or a picture of yours. More: regard scenes 5 --save pictures";

/** The picture that was looked at last: it is still there when one comes back from another view. */
/** @type {{answer: any, image: HTMLImageElement, name: string} | null} */
let last = null;

class PictureView {
  constructor(root, context) {
    this.context = context;
    this.answer = last?.answer ?? null;
    this.image = last?.image ?? null;
    this.hovered = null;
    this.asked = false;
    this.request = latest();
    this.captioners = context.about.models.filter((model) => model.task === "caption");
    this.calls = (context.trace?.calls ?? []).filter((call) => call.grid);
    this.controls = el("div.controls");
    this.status = el("p.status", { role: "status" });
    this.stage = el("div.drawing");
    this.strip = el("div.strip", { role: "group", "aria-label": "Words" });
    this.reading = el("p.quietly");
    root.replaceChildren(
      this.controls,
      el(
        "div.split.picture",
        this.stage,
        el("aside.aside.picture-aside", { "aria-label": "Words" }, this.reading, this.strip),
      ),
    );
    this.board = makeBoard(
      this.stage,
      { role: "img", "aria-label": "The picture and where the model looked" },
      (pen, width, height) => drawPicture(this, pen, width, height),
    );
    this.board.node.addEventListener("pointermove", (event) => this.point(place(event, this.board.node)));
    this.board.node.addEventListener("pointerleave", () => this.point(null));
    this.board.node.addEventListener(
      "click",
      () => this.hovered !== null && !this.answer && this.set({ query: this.hovered + this.special }),
    );
    this.keys = [
      { key: "ArrowLeft", text: "the word or cell before", run: () => this.step(-1) },
      { key: "ArrowRight", text: "the next word or cell", run: () => this.step(1) },
    ];
    this.drop = this.captioners.length
      ? makeDrop(root, {
          label: "Choose a picture, or drop one",
          accept: "image/*",
          most: context.about.limits.upload,
          taken: (file) => this.describe(file),
          failed: context.fail,
        })
      : null;
    /** @type {{name: string, file: Blob}[]} */
    this.samples = [];
    this.update();
    if (this.drop) this.offerSamples();
  }

  /** The pictures that ship. A link names the one that is shown; where nothing is, the first is described. */
  async offerSamples() {
    this.samples = await samplesOf(this.context.source, "pictures");
    this.show();
    const linked = this.samples.find(({ name }) => name === this.settings.sample);
    const first = linked ?? (this.answer || this.call || this.asked ? null : this.samples[0]);
    if (first && first.name !== last?.name) await this.describe(first.file, first.name);
  }

  /** This view's part of the state: {word, query, smooth, sample}. */
  get settings() {
    const { word, query, smooth = true, sample = null } = this.context.state.get().picture ?? {};
    const whole = (given) => Math.trunc(bounded(given, 0, Infinity));
    return { word: whole(word), query: whole(query), smooth: Boolean(smooth), sample };
  }

  set(patch) {
    this.context.state.set({ picture: { ...this.context.state.get().picture, ...patch } });
  }

  get call() {
    return this.calls.find((call) => call.id === this.context.state.get().call) ?? this.calls[0];
  }

  /** Keys that are no cells: a class token before them. */
  get special() {
    return this.call.keys - this.call.grid[0] * this.call.grid[1];
  }

  /** `name` is that of a sample. @param {Blob} file */
  async describe(file, name = "") {
    this.status.textContent = "Looking …";
    this.asked = true;
    try {
      const answer = await this.request((signal) => this.context.source.post("/api/caption", file, signal));
      if (!answer) return;
      this.image = await loaded(answer.picture);
      this.answer = answer;
      last = { answer, image: this.image, name };
      this.context.announce(answer.text);
      this.set({ word: name && name === this.settings.sample ? this.settings.word : 0, sample: name || null });
      this.update();
    } catch (error) {
      this.context.fail(error);
    } finally {
      this.status.textContent = "";
    }
  }

  async fetchRow() {
    const { call } = this;
    const query = Math.min(this.settings.query, call.queries - 1);
    const head = Math.min(this.context.state.get().head ?? 0, call.heads - 1);
    const key = JSON.stringify([call.id, head, query]);
    if (key === this.fetched) return;
    this.fetched = key;
    const { source, state, trace } = this.context;
    const rows = `${query}:${query + 1}`;
    const asked = { heads: head, entry: state.get().entry ?? 0, rows, type: "float32" };
    try {
      const found = await this.request((signal) => source.array(`${callPath(trace, call)}/weights`, asked, signal));
      if (!found) return;
      this.row = { query, data: found.data };
      this.show();
    } catch (error) {
      this.context.fail(error);
    }
  }

  update() {
    if (!this.answer && this.call) this.fetchRow();
    this.show();
  }

  /** {grid, weights, name} of what is looked at, or null. */
  get shown() {
    if (this.answer) {
      const at = Math.min(this.settings.word, this.answer.words.length - 1);
      return { grid: this.answer.grid, weights: this.answer.weights[at], name: this.answer.words[at] };
    }
    if (!this.row || !this.call) return null;
    return { grid: this.call.grid, weights: [...this.row.data.slice(this.special)], name: this.nameOf(this.row.query) };
  }

  nameOf(query) {
    const cell = query - this.special;
    if (cell >= 0) return `cell ${Math.floor(cell / this.call.grid[1]) + 1}, ${(cell % this.call.grid[1]) + 1}`;
    return plain(this.context.trace.sides?.[this.call.query_side]?.[query] ?? `token ${query}`);
  }

  show() {
    this.showControls();
    this.showStrip();
    this.board.ask();
    this.read();
  }

  showControls() {
    const { smooth } = this.settings;
    const { call } = this;
    const own = !this.answer && call;
    const { head = 0 } = this.context.state.get();
    const stamp = JSON.stringify([own && call.id, head, smooth, Boolean(this.answer), this.samples.length]);
    refill(this.controls, stamp, () => [
      ...(this.drop ? [this.drop.root] : []),
      ...this.samples.map(({ name, file }) => el("button.sample", { onclick: () => this.describe(file, name) }, name)),
      ...(own
        ? [
            callChoice({ ...this.context.trace, calls: this.calls }, call, (id) =>
              this.context.state.set({ call: id }),
            ),
            headChoice(call.heads, head, (value) => this.context.state.set({ head: value })),
          ]
        : []),
      tick("Smooth", smooth, (on) => this.set({ smooth: on }), "blend the cells of the grid into one another"),
      this.status,
    ]);
  }

  showStrip() {
    const buttons = wordButtons(this);
    if (this.drop && !buttons.length) return this.strip.replaceChildren(el("p.quietly", SCENES));
    refill(this.strip, {}, () => buttons);
  }

  step(by) {
    const count = this.answer ? this.answer.words.length : (this.call?.queries ?? 0);
    const name = this.answer ? "word" : "query";
    if (!count) return;
    this.set({ [name]: (this.settings[name] + by + count) % count });
    if (this.shown) this.context.announce(this.shown.name);
  }

  box({ width, height }, { grid }) {
    const inner = within(width - 40, height - 40, this.ratio(grid));
    return { ...inner, x: inner.x + 20, y: inner.y + 20 };
  }

  /** Width over height. The model reads a square; it is shown with the proportions of the file. */
  ratio(grid) {
    const [width, height] = this.answer?.proportions ?? [grid[1], grid[0]];
    return width / height;
  }

  point(at) {
    const { shown } = this;
    if (!shown) return;
    const [rows, columns] = shown.grid;
    const box = this.box(this.board.size, shown);
    const [column, row] = at
      ? [Math.floor(((at.x - box.x) / box.width) * columns), Math.floor(((at.y - box.y) / box.height) * rows)]
      : [-1, -1];
    this.hovered = row >= 0 && column >= 0 && row < rows && column < columns ? row * columns + column : null;
    this.board.ask();
    this.read();
  }

  read() {
    const { shown } = this;
    if (!shown) return;
    const most = Math.max(...shown.weights);
    const cell =
      this.hovered === null
        ? `brightest ${number(most)}`
        : `this cell ${number(shown.weights[this.hovered])}, brightest ${number(most)}`;
    const remarks = (this.answer?.remarks ?? []).map((remark) => ` Note: ${remark}.`).join("");
    this.reading.textContent = `“${shown.name}”: ${cell}. ${shown.grid[0]} × ${shown.grid[1]} cells.${remarks}`;
  }

  picture() {
    if (!this.shown) return null;
    const { width, height } = this.board.size;
    return onPaper(width, height, inks(this.stage).paper, (pen) => drawPicture(this, pen, width, height));
  }

  /** A dark picture shows where the model did not look; without a picture, cells have colours. */
  legend() {
    return this.image ? null : { to: "largest", words: "share of the largest weight" };
  }

  caption() {
    const words = this.answer?.text ?? "";
    return words && `“${words}”, here “${this.shown?.name}”: the brighter, the more the model looked there`;
  }

  table() {
    const all = this.answer
      ? this.answer.words.map((word, at) => [word, this.answer.weights[at]])
      : this.shown
        ? [[this.shown.name, this.shown.weights]]
        : [];
    const { grid } = this.shown ?? { grid: [0, 0] };
    const cells = Array.from(
      { length: grid[0] * grid[1] },
      (_, i) => `row ${Math.floor(i / grid[1]) + 1} column ${(i % grid[1]) + 1}`,
    );
    return [["", ...cells], ...all.map(([name, weights]) => [name, ...weights])];
  }

  subject() {
    if (this.answer || !this.call) return [];
    const { trace, state } = this.context;
    return [trace.model, ...fileParts(trace, this.call, [Math.min(state.get().head ?? 0, this.call.heads - 1)])];
  }

  drawn() {
    const { shown } = this;
    return (
      shown && {
        ...shown,
        hovered: this.hovered,
        box: this.box(this.board.size, shown),
      }
    );
  }

  destroy() {
    this.request.end();
    this.drop?.close();
    this.board.close();
  }
}

async function loaded(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/** A button for each word. `view` is the Picture view. */
function wordButtons(view) {
  const { answer, call } = view;
  const { word, query } = view.settings;
  const words = answer?.words ?? (call ? Array.from({ length: view.special }, (_, i) => view.nameOf(i)) : []);
  const chosen = answer ? Math.min(word, words.length - 1) : query;
  return words.map((name, at) =>
    el(
      "button.strip-word",
      { "aria-pressed": String(at === chosen), onclick: () => view.set(answer ? { word: at } : { query: at }) },
      ...(answer ? [smallPicture(view, at)] : []),
      name,
    ),
  );
}

/** The picture, and where the model looked for one word. */
function smallPicture(view, at) {
  const { weights, grid } = view.answer;
  const { width, height } = within(96, 96, view.ratio(grid));
  const canvas = el("canvas", { width, height, "aria-hidden": "true" });
  const { image, settings, context } = view;
  const over = { image, weights: weights[at], grid, smooth: settings.smooth, palette: context.palette };
  drawOver(context2d(canvas), { x: 0, y: 0, width, height }, over);
  return canvas;
}

const NOTHING =
  "Nothing to look at yet: a captioner is not installed here, and this trace has no picture. " +
  "A trace of a vision model has one: its calls' keys are the cells of a grid.";

/** The picture with its weights, and a frame around the cell that is pointed at or chosen. `view` is the Picture view. */
function drawPicture(view, pen, width, height) {
  const { soft, accent, font } = inks(view.stage);
  const { shown } = view;
  if (!shown) {
    Object.assign(pen, { fillStyle: soft, font: `14px ${font}`, textAlign: "center" });
    const text = view.drop ? "Drop a picture here." : view.call ? "" : NOTHING;
    textLines(text, 60).forEach((line, i) => pen.fillText(line, width / 2, height / 2 + 22 * i));
    return;
  }
  const box = view.box({ width, height }, shown);
  drawOver(pen, box, { image: view.image, ...shown, smooth: view.settings.smooth, palette: view.context.palette });
  const cell =
    view.hovered ?? (!view.answer && view.settings.query >= view.special ? view.settings.query - view.special : null);
  if (cell === null) return;
  const [rows, columns] = shown.grid;
  Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
  pen.strokeRect(
    box.x + ((cell % columns) * box.width) / columns,
    box.y + (Math.floor(cell / columns) * box.height) / rows,
    box.width / columns,
    box.height / rows,
  );
}
