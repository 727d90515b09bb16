// Inside: one layer and head of a small Transformer, matrix by matrix, as the model computed them.
//
// POST /api/inside answers {tokens, layers, heads, width, matrices: {name: rows}, steps: [{title, text, shows | product}],
// next?: [{piece, share}]}; a masked entry is null.
import { plain } from "../../data/tokens.js";
import { inks, makeBoard, onPaper, place } from "../../draw/canvas.js";
import { choice, el } from "../../draw/dom.js";
import { bounded, number } from "../../draw/numbers.js";
import { Player } from "../../draw/player.js";
import { cellReading } from "./cell_reading.js";
import { drawMatrix } from "./matrix_drawing.js";
import { cellAt, laidOut, litIn } from "./matrix_layout.js";

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

const TEXT = "My lord, the night is";
const PACE = 2200; // milliseconds a step while playing
const FADE = 300; // milliseconds in which a step appears

function nothing(root) {
  const words =
    "This view computes one layer of a small Transformer, and none is here. Those that ship are shown by: regard view.";
  root.append(el("div.empty", {}, el("p", {}, words)));
  return { update() {}, destroy() {} };
}

class Inside {
  constructor(root, context, models) {
    this.context = context;
    this.models = models;
    this.answer = null;
    this.asked = "";
    this.hover = null;
    this.begun = 0;
    /** @type {import("./matrix_layout.js").Box[]} */
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
    this.chosers = el("span.samples");
    this.controls = el("div.controls", {}, this.input, this.chosers);
    this.play = el("button", { type: "button", onclick: () => this.toggle() }, "Play");
    this.player = new Player(this.play, PACE, () => this.forward());
    this.list = el("div.inside-steps", { role: "group", "aria-label": "Steps", "data-arrows": true });
    this.text = el("p.inside-text", { role: "status" });
    this.stage = el("div.drawing");
    this.reading = el("p.footer");
    root.append(this.controls, el("div.inside-line", {}, this.play, this.list), this.text, this.stage, this.reading);
    const label = "The matrices of this step: point at a number to read it";
    this.board = makeBoard(this.stage, { role: "img", "aria-label": label }, (pen, width, height) =>
      this.draw(pen, width, height),
    );
    this.board.node.addEventListener("pointermove", (event) => this.point(place(event, this.board.node)));
    this.board.node.addEventListener("pointerdown", (event) => this.point(place(event, this.board.node)));
    this.board.node.addEventListener("pointerleave", () => this.point(null));
    this.keys = [
      { key: "ArrowRight", text: "next step", run: () => this.go(this.step + 1) },
      { key: "ArrowLeft", text: "previous step", run: () => this.go(this.step - 1) },
      { key: " ", text: "play or pause", run: () => this.toggle() },
    ];
    this.update();
  }

  /** This view's part of the state: {model, text, layer, head, step}. */
  get settings() {
    const given = this.context.state.get().inside ?? {};
    const model =
      this.models.find((one) => one.name === given.model) ??
      this.models.find((one) => one.task === "generate") ??
      this.models[0];
    return {
      model,
      text: typeof given.text === "string" && given.text.trim() ? given.text : TEXT,
      layer: Math.trunc(bounded(given.layer, 0, model.layers - 1)),
      head: Math.trunc(bounded(given.head, 0, 64)),
      step: Math.trunc(bounded(given.step, 0, Infinity)),
    };
  }

  set(patch) {
    this.context.state.set({ inside: { ...this.context.state.get().inside, ...patch } });
  }

  get step() {
    return Math.min(this.settings.step, (this.answer?.steps.length ?? 1) - 1);
  }

  go(step) {
    if (!this.answer) return;
    this.begun = performance.now();
    this.hover = null;
    this.set({ step: bounded(step, 0, this.answer.steps.length - 1) });
    this.context.announce(`${this.answer.steps[this.step].title}: ${this.answer.steps[this.step].text}`);
  }

  toggle() {
    if (!this.player.playing && this.answer && this.step === this.answer.steps.length - 1) this.go(0);
    this.player.toggle();
  }

  /** To the next step; false where there is none. */
  forward() {
    if (!this.answer || this.step >= this.answer.steps.length - 1) return false;
    this.go(this.step + 1);
    return true;
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
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.text.textContent = "Computing …";
    try {
      this.answer = await this.context.source.post("/api/inside", body, running.signal);
      this.sizes = Object.fromEntries(
        Object.entries(this.answer.matrices).map(([name, rows]) => [name, [rows.length, rows[0].length]]),
      );
      this.peaks = Object.fromEntries(
        Object.entries(this.answer.matrices).map(([name, rows]) => [
          name,
          rows.flat().reduce((most, x) => Math.max(most, Math.abs(x ?? 0)), 0) || 1,
        ]),
      );
      this.begun = performance.now();
      this.show();
    } catch (error) {
      if (error.name !== "AbortError") this.text.textContent = error.message;
    }
  }

  show() {
    const { model, layer, head } = this.settings;
    const numbers = (count) => Array.from({ length: count }, (_, i) => [i, String(i)]);
    const names = this.models.map((one) => [one.name, one.title]);
    const stamp = JSON.stringify([model.name, layer, head, this.answer?.heads]);
    if (stamp !== this.controlled) {
      this.controlled = stamp;
      this.chosers.replaceChildren(
        choice("Model", names, model.name, (name) => this.set({ model: name, layer: 0, head: 0 })),
        choice("Layer", numbers(model.layers), layer, (value) => this.set({ layer: Number(value) })),
        choice("Head", numbers(this.answer?.heads ?? head + 1), head, (value) => this.set({ head: Number(value) })),
      );
    }
    if (!this.answer) return;
    const step = this.answer.steps[this.step];
    this.list.replaceChildren(
      ...this.answer.steps.map(({ title, text }, at) =>
        el(
          "button.chip",
          { type: "button", title: text, "aria-pressed": String(at === this.step), onclick: () => this.go(at) },
          title,
        ),
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
    const moving = !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const shown = moving ? Math.min(1, (performance.now() - this.begun) / FADE) : 1;
    for (const [at, box] of layout.boxes.entries()) {
      pen.globalAlpha = at === layout.boxes.length - 1 ? shown : 1; // the result of the step appears
      this.drawBox(pen, box);
    }
    pen.globalAlpha = 1;
    if (shown < 1) requestAnimationFrame(() => this.board.ask());
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
    this.player.pause();
    this.running?.abort();
    this.board.close();
  }
}
