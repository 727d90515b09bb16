// Generation: a scrubber over the tokens a model wrote, and what each looked at while it was written.

import { callOf, fileParts } from "../../data/calls.js";
import { Links } from "../../data/links.js";
import { sideOf } from "../../data/tokens.js";
import { Rows } from "../../data/weight_rows.js";
import { callChoice } from "../../draw/call_choice.js";
import { fit, inks, painter } from "../../draw/canvas.js";
import { el, tick } from "../../draw/dom.js";
import { headButtons } from "../../draw/head_buttons.js";
import { counted, number } from "../../draw/numbers.js";
import { Player } from "../../draw/player.js";
import { shade, shadeSigned } from "../../draw/token_flow.js";
import { AnswerChoice } from "../contributions/answer_choice.js";
import { emptyGeneration } from "./empty_generation.js";
import { contributed } from "./generation_contributions.js";
import { generationLegend, generationPicture, generationTable, largestSize } from "./generation_export.js";
import { drawChart } from "./generation_heatmap.js";
import { generationKeys } from "./generation_keys.js";
import { strongestKeys } from "./generation_sidebar.js";
import { NextTokenPanel } from "./next_token_panel.js";
import { written } from "./prompt_split.js";
import { tokenTexts } from "./token_texts.js";

const PACE = 450; // milliseconds a token while playing
const CHARTED =
  "One column for each token written, one row for each token it could see, from the first down; " +
  "the largest weight where several share a pixel.";
const CHARTED_CONTRIBUTIONS =
  "One column for each token written, with its own scale: contributions to that token. Each takes a backward pass, so " +
  "a column appears when its token is looked at.";

/** @type {View} */
export const generation = {
  name: "generation",
  title: "Generation",
  hint: "Token by token: what the model looked at while it wrote",
  needs: "trace",
  mount: (root, context) => {
    const wrote = context.trace.calls.filter((call) => call.steps.length > 1);
    return wrote.length ? new Generation(root, context, wrote) : emptyGeneration(root, context);
  },
};

class Generation {
  /** @type {Call} */
  call;
  /** @type {Rows} */
  rows;
  /** @type {Links} */
  links;
  /** @type {ReturnType<typeof sideOf>} */
  querySide;
  /** @type {ReturnType<typeof sideOf>} */
  keySide;
  /** @type {number[]} */
  active;
  /** @type {ReturnType<typeof written>} */
  written;
  /** @type {number} */
  step;
  /** @type {number} */
  first;
  /** @type {HTMLElement[]} */
  spans;
  /** @type {HTMLButtonElement[]} */
  outs;

  constructor(root, context, wrote) {
    this.context = context;
    this.trace = context.trace;
    this.wrote = wrote;
    this.paint = painter(() => this.draw());
    const { state } = this.context;
    this.callBox = el("span");
    this.buttons = headButtons((chosen) => state.set({ heads: chosen }));
    this.sink = tick(
      "Hide first token",
      false,
      (on) => state.set({ mute: on ? ["first"] : null }),
      "Leave the first token out: much weight often rests on it for want of a better place (m)",
    );
    this.slider = el("input.scrub", {
      type: "range",
      min: 0,
      step: 1,
      "aria-label": "Token written",
      oninput: () => state.set({ step: Number(this.slider.value) }),
    });
    this.play = el("button", { type: "button", onclick: () => this.toggle() }, "Play");
    this.player = new Player(this.play, PACE, () => this.forward());
    this.now = el("p.now", { role: "status" });
    this.text = el("div.tokens", { role: "group", "aria-label": "What it looked at" });
    this.lookedTitle = el("h2.quietly");
    this.out = el("div.tokens", { role: "group", "aria-label": "What it wrote", "data-arrows": true });
    this.chart = el("canvas", {
      role: "img",
      "aria-label": "What every token looked at: one column per token written",
    });
    this.chartBox = el("div.chart", {}, this.chart);
    this.scale = el("p.quietly.small");
    this.charted = el("p.quietly.small");
    this.strongest = el("div");
    this.next = new NextTokenPanel(context);
    this.aside = el("aside.aside", { "aria-label": "The strongest keys" }, this.strongest, this.next.root);
    this.chart.addEventListener("pointerdown", (event) => this.jump(event));
    this.chart.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
    const reading = el(
      "div.drawing.plain.over-time",
      {},
      el("div.scrubber", {}, this.play, this.slider),
      this.now,
      this.lookedTitle,
      this.text,
      this.scale,
      el("h2.quietly", {}, "It wrote"),
      this.out,
      el("h2.quietly", {}, "Over time"),
      this.chartBox,
      this.charted,
    );
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    this.contributions = contributed(this);
    root.append(
      el("div.controls", {}, this.callBox, this.buttons, this.sink, this.answerChoice.root, this.buttons.every),
      el("div.split", {}, reading, this.aside),
    );
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.chartBox);
    this.update(context.state.get());
  }

  // State

  update(state) {
    this.state = state;
    const found = callOf(this.trace, state);
    const call = this.wrote.includes(found) ? found : this.wrote[0];
    if (call !== this.call) {
      this.rows?.close();
      this.call = call;
      this.rows = new Rows(this.context, call, state.entry ?? 0, () => this.paint());
      const shown = { ...this.trace, calls: this.wrote };
      this.callBox.replaceChildren(callChoice(shown, call, (id) => this.context.state.set({ call: id })));
    }
    if (this.links?.rows !== this.rows || this.level !== this.context.level) {
      this.level = this.context.level;
      this.keySide = sideOf(this.trace, call, "key", this.level);
      // Each token written is a row of its own; words are only of what is looked at.
      this.querySide = sideOf(this.trace, call, "query", "token");
      this.links = new Links(this.rows, this.querySide, this.keySide);
      this.written = written(this.trace, call, this.querySide);
      this.layText();
    }
    const all = Array.from({ length: call.heads }, (_, i) => i);
    this.active = Array.isArray(state.heads) ? all.filter((head) => state.heads.includes(head)) : all;
    this.muted = Array.isArray(state.mute) && state.mute.includes("first");
    this.buttons.show(call.heads, this.active, this.context.palette);
    this.sink.show(this.muted);
    this.step = Math.min(state.step ?? 0, this.written.length - 1);
    this.slider.max = String(this.written.length - 1);
    this.slider.value = String(this.step);
    this.slider.setAttribute(
      "aria-valuetext",
      `${this.step + 1} of ${this.written.length}: ${this.written[this.step].label}`,
    );
    this.answerChoice.update(call, this.written[this.step].row);
    this.contributions.update();
    this.paint();
  }

  layText() {
    const texts = tokenTexts(this);
    [this.first, this.spans, this.outs] = [texts.first, texts.read, texts.written];
    this.text.replaceChildren(
      ...(this.first ? [el("span.quietly", {}, `(${this.first} tokens before) `)] : []),
      ...this.spans,
    );
    this.out.replaceChildren(...this.outs);
  }

  // Time

  get keys() {
    return generationKeys(this);
  }

  toggle() {
    if (!this.player.playing && this.step === this.written.length - 1) this.context.state.set({ step: 0 });
    this.player.toggle();
  }

  /** To the next token; false where there is none. */
  forward() {
    if (this.step + 1 >= this.written.length) return false;
    this.context.state.set({ step: this.step + 1 });
    return true;
  }

  jump(event) {
    const { left, width } = this.chart.getBoundingClientRect();
    const step = Math.floor(((event.clientX - left) / width) * this.written.length);
    this.context.state.set({ step: Math.min(this.written.length - 1, Math.max(0, step)) });
  }

  // Drawing

  /** What the token of one step looked at: the mean over the heads that are on, by label; null while it is fetched. */
  looked(step) {
    if (this.contributions.on) return this.contributions.of(step);
    const out = new Float32Array(this.keySide.labels.length);
    for (const head of this.active) {
      const found = this.links.from(head, this.written[step].row);
      if (!found) return null;
      found.keys.forEach((key, at) => {
        out[key] += found.weights[at] / this.active.length;
      });
    }
    return out;
  }

  shown(step) {
    const weights = this.looked(step);
    if (weights && this.muted) weights[0] = 0;
    return weights;
  }

  draw() {
    const { palette } = this.context;
    const { label, row, after } = this.written[this.step];
    const weights = this.shown(this.step);
    const last = after ? `written after “${after}” (row ${row} of the weights)` : `row ${row} of the weights`;
    this.now.replaceChildren(el("strong", {}, label), ` token ${this.step + 1} of ${this.written.length}, ${last}`);
    const most = largestSize(weights);
    const signed = this.contributions.on;
    const unread = this.call.kind === "self" ? row + 1 : Infinity;
    this.spans.forEach((span, at) => {
      (signed ? shadeSigned : shade)(span, this.amount(weights, at + this.first, most), palette);
      span.classList.toggle("unread", this.keySide.groups[at + this.first][0] >= unread);
      span.title = weights ? number(weights[at + this.first]) : "";
    });
    this.outs.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === this.step));
      button.classList.toggle("later", at > this.step);
      button.tabIndex = at === this.step ? 0 : -1;
    });
    this.lookedTitle.textContent = signed ? `Contributed to ${this.answerChoice.name}` : "It looked at";
    this.charted.textContent = signed ? CHARTED_CONTRIBUTIONS : CHARTED;
    const [what, from] = signed ? ["Sum", number(-most)] : ["Mean", "0"];
    this.scale.textContent = `${what} over ${counted(this.active.length, "head")}; colours from ${from} to ${number(most)} (square-root scale).`;
    this.strongest.replaceChildren(...strongestKeys(this, weights));
    const read = this.trace.sides[this.call.query_side] ?? [];
    this.next.show(read.slice(0, row + 1), label);
    const { clientWidth, clientHeight } = this.chartBox;
    if (clientWidth) this.chartOn(fit(this.chart, clientWidth, clientHeight), clientWidth, clientHeight);
  }

  amount(weights, at, most) {
    return weights && most ? Math.sign(weights[at]) * Math.sqrt(Math.abs(weights[at]) / most) : 0;
  }

  chartOn(ctx, width, height) {
    drawChart(ctx, {
      width,
      height,
      steps: this.written.length,
      labels: this.keySide.labels.length,
      now: this.step,
      weightsOf: (step) => this.shown(step),
      signed: this.contributions.on,
      palette: this.context.palette,
      accent: inks(this.chartBox).accent,
    });
  }

  // Export and tests

  picture() {
    return generationPicture(this);
  }

  legend() {
    return generationLegend(this);
  }

  subject() {
    return fileParts(this.trace, this.call, this.active);
  }

  table() {
    return generationTable(this);
  }

  drawn() {
    const weights = this.shown(this.step);
    return {
      call: this.call.id,
      step: this.step,
      written: this.written,
      active: this.active,
      toward: this.contributions.on ? this.answerChoice.answers : null,
      weights: weights && Array.from(weights),
      colors: this.spans.map((span) => span.style.background),
    };
  }

  destroy() {
    this.player.pause();
    this.paint.cancel();
    this.watcher.disconnect();
    this.next.close();
    this.answerChoice.close();
    this.contributions.close();
    this.rows.close();
  }
}
