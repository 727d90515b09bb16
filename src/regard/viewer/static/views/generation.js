// Generation: a scrubber over the tokens a model wrote, and what each looked at while it was written.
import { latest } from "../data/sources.js";
import { callOf, fileParts, plain, sideOf } from "../data/tokens.js";
import { Links, STRONGEST } from "../data/weights.js";
import { inks, makeBoard, onPaper, painter, place as placeOf, sheet, write } from "../draw/canvas.js";
import {
  barRow,
  bounded,
  callChoice,
  counted,
  el,
  headButtons,
  headsOn,
  number,
  Player,
  refill,
  shareRow,
  signBar,
  slider,
  tick,
} from "../draw/elements.js";
import { drawFlow, shade } from "../draw/weight_pictures.js";
import { AnswerChoice } from "./answer_choice.js";

const PACE = 450; // milliseconds a token while playing
const CHARTED =
  "One column for each token written, one row for each token it could see, from the first down; " +
  "the largest weight where several share a pixel.";
/** @type {View} */
export const generation = {
  name: "generation",
  title: "Generation",
  hint: "Token by token: what the model looked at while it wrote",
  needs: "trace",
  mount: (root, context) => {
    const wrote = context.trace.calls.filter((call) => call.steps.length > 1 && written(context.trace, call).length);
    return wrote.length ? new Generation(root, context, wrote) : emptyGeneration(root, context);
  },
};

class Generation {
  /** @type {Call} */
  call;
  /** @type {import("../data/weights.js").Rows} */
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
    const why = "Much weight often rests on it for want of a better place (m)";
    this.sink = tick("Hide first token", false, (on) => state.set({ mute: on ? ["first"] : null }), why);
    this.slider = el("input.scrub", {
      type: "range",
      min: 0,
      step: 1,
      "aria-label": "Token written",
      oninput: () => state.set({ step: Number(this.slider.value) }),
    });
    const place = () => [this.step, this.written.length];
    this.player = new Player(PACE, place, (step) => state.set({ step }));
    this.now = el("p.now", { role: "status" });
    this.text = el("div.tokens", { role: "group", "aria-label": "What it looked at" });
    this.lookedTitle = el("h2.quietly");
    this.out = el("div.tokens", { role: "group", "aria-label": "What it wrote", "data-arrows": true });
    this.chartBox = el("div.chart");
    this.scale = el("p.quietly.small");
    this.time = el(
      "section.over-time",
      { "aria-label": "Over time" },
      el("h3.quietly", "Over time"),
      this.chartBox,
      el("p.quietly.small", CHARTED),
    );
    this.strongest = el("div");
    this.next = new NextTokenPanel(context);
    this.aside = el("aside.aside", { "aria-label": "The strongest keys" }, this.strongest, this.next.root);
    const label = "What every token looked at: one column per token written";
    this.chart = makeBoard(this.chartBox, { role: "img", "aria-label": label }, (pen, width, height) =>
      this.chartOn(pen, width, height),
    );
    this.chart.node.addEventListener("pointerdown", (event) => this.jump(event));
    this.chart.node.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
    const reading = el(
      "div.drawing.plain.over-time",
      el("div.scrubber", this.player.button, this.slider),
      this.now,
      this.lookedTitle,
      this.text,
      this.scale,
      el("h2.quietly", "It wrote"),
      this.out,
      this.time,
    );
    this.answerChoice = new AnswerChoice(context, () => this.update(this.context.state.get()));
    root.append(
      el("div.controls.folds", this.callBox, this.buttons, this.sink, this.answerChoice.root, this.buttons.every),
      el("div.split", reading, this.aside),
    );
    this.update(context.state.get());
  }

  // State

  update(state) {
    this.state = state;
    const found = callOf(this.trace, state);
    const call = this.wrote.includes(found) ? found : this.wrote[0];
    const shown = { ...this.trace, calls: this.wrote };
    refill(this.callBox, call.id, () => [callChoice(shown, call, (id) => this.context.state.set({ call: id }))]);
    if (call !== this.call || this.level !== this.context.level) {
      this.call = call;
      this.level = this.context.level;
      this.keySide = sideOf(this.trace, call, "key", this.level);
      // Each token written is a row of its own; words are only of what is looked at.
      this.querySide = sideOf(this.trace, call, "query", "token");
      this.written = written(this.trace, call, this.querySide);
      this.layText();
    }
    this.active = headsOn(call, state);
    this.muted = Array.isArray(state.mute) && state.mute.includes("first");
    this.buttons.show(call.heads, this.active, this.context.palette);
    this.sink.show(this.muted);
    this.step = Math.min(state.step ?? 0, this.written.length - 1);
    this.slider.max = String(this.written.length - 1);
    this.slider.value = String(this.step);
    const words = `${this.step + 1} of ${this.written.length}: ${this.written[this.step].label}`;
    this.slider.setAttribute("aria-valuetext", words);
    this.answerChoice.update(call, this.written[this.step].row);
    this.showRows();
    this.paint();
  }

  /** The weights of this call, or its contributions to the token of this step. */
  showRows() {
    this.rows = this.answerChoice.rows(this.rows ?? null, this.call, () => this.paint());
    if (this.links?.rows !== this.rows || this.links.keySide !== this.keySide)
      this.links = new Links(this.rows, this.querySide, this.keySide);
  }

  /** Whether contributions are shown, or awaited. */
  get signed() {
    const { on, why, answers } = this.answerChoice;
    return on && !why && (!answers || this.rows.signed);
  }

  layText() {
    const texts = tokenTexts(this);
    [this.first, this.spans, this.outs] = [texts.first, texts.read, texts.written];
    this.text.replaceChildren(
      ...(this.first ? [el("span.quietly", `(${this.first} tokens before) `)] : []),
      ...this.spans,
    );
    this.out.replaceChildren(...this.outs);
  }

  // Time

  /** @returns {KeyBinding[]} */
  get keys() {
    const to = (step) => this.context.state.set({ step: bounded(step, 0, this.written.length - 1) });
    return [
      { key: "ArrowRight", text: "next token", run: () => to(this.step + 1) },
      { key: "ArrowLeft", text: "previous token", run: () => to(this.step - 1) },
      { key: "Home", text: "first token written", run: () => to(0) },
      { key: "End", text: "last token written", run: () => to(this.written.length - 1) },
      { key: " ", text: "play or pause", run: () => this.player.toggle() },
      {
        key: "m",
        text: "hide the first token",
        run: () => this.context.state.set({ mute: this.muted ? null : ["first"] }),
      },
      { key: "a", text: "all heads", run: () => this.context.state.set({ heads: null }) },
    ];
  }

  jump(event) {
    const step = Math.floor((placeOf(event, this.chart.node).x / this.chart.size.width) * this.written.length);
    this.context.state.set({ step: bounded(step, 0, this.written.length - 1) });
  }

  // Drawing

  /** What the token of one step looked at: the mean over the heads that are on, by label; null while it is fetched. Of
   * contributions the sum.
   */
  looked(step) {
    if (this.signed && !this.rows.signed) return null;
    const out = new Float32Array(this.keySide.labels.length);
    for (const head of this.active) {
      const found = this.links.from(head, this.written[step].row);
      if (!found) return null;
      found.keys.forEach((key, at) => {
        out[key] += found.weights[at] / (this.rows.signed ? 1 : this.active.length);
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
    this.now.replaceChildren(el("strong", label), ` token ${this.step + 1} of ${this.written.length}, ${last}`);
    const most = largestSize(weights);
    const signed = this.signed;
    const unread = this.call.kind === "self" ? row + 1 : Infinity;
    this.spans.forEach((span, at) => {
      shade(span, this.amount(weights, at + this.first, most), palette, signed);
      span.classList.toggle("unread", this.keySide.groups[at + this.first][0] >= unread);
      span.title = weights ? number(weights[at + this.first]) : "";
    });
    this.outs.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === this.step));
      button.classList.toggle("later", at > this.step);
      button.tabIndex = at === this.step ? 0 : -1;
    });
    this.lookedTitle.textContent = signed ? `Contributed to ${this.answerChoice.name}` : "It looked at";
    this.time.hidden = signed; // the contributions to each token take a backward pass of their own
    const [what, from] = signed ? ["Sum", number(-most)] : ["Mean", "0"];
    this.scale.textContent = `${what} over ${counted(this.active.length, "head")}; colours from ${from} to ${number(most)} (square-root scale).`;
    this.strongest.replaceChildren(...strongestKeys(this, weights));
    const read = this.trace.sides[this.call.query_side] ?? [];
    this.next.show(read.slice(0, row + 1), label);
    this.chart.ask();
    this.context.drew();
  }

  amount(weights, at, most) {
    return weights && most ? Math.sign(weights[at]) * Math.sqrt(Math.abs(weights[at]) / most) : 0;
  }

  /** A column for each token written, and a row for each label that it could see. */
  chartOn(pen, width, height) {
    const { palette } = this.context;
    pen.fillStyle = palette.ramp(0);
    pen.fillRect(0, 0, width, height);
    const across = width / this.written.length;
    const labels = this.keySide.labels.length;
    const bins = Math.min(labels, height);
    for (let step = 0; step < this.written.length; step++) {
      const most = new Float32Array(bins);
      this.shown(step)?.forEach((weight, at) => {
        const bin = Math.floor((at * bins) / labels);
        most[bin] = Math.max(most[bin], weight);
      });
      most.forEach((weight, bin) => {
        if (weight < 0.001) return;
        pen.fillStyle = palette.ramp(Math.sqrt(weight));
        pen.fillRect(step * across, (bin * height) / bins, Math.max(1, across - (across > 6 ? 1 : 0)), height / bins);
      });
    }
    Object.assign(pen, { strokeStyle: inks(this.chartBox).accent, lineWidth: 2 });
    pen.strokeRect(this.step * across, 1, across, height - 2);
  }

  // Export and tests

  /** The text with what the token of this step looked at, and the chart below. */
  picture() {
    const [width, colors, { palette }] = [this.chartBox.clientWidth + 40, inks(this.chartBox), this.context];
    const weights = this.shown(this.step);
    const most = largestSize(weights);
    const signed = this.signed;
    const items = this.keySide.labels
      .slice(this.first)
      .map((label, at) => ({ label, shade: this.amount(weights, at + this.first, most) }));
    const title = signed ? `contributions to ${this.answerChoice.name}` : `${this.written[this.step].label} looked at`;
    const flow = (pen) => drawFlow(pen, items, 20, 48, width - 40, palette, colors, signed);
    const below = flow(sheet(1, 1));
    return onPaper(width, signed ? below : below + CHART + 30, colors.paper, (pen) => {
      write(pen, title, 20, 24, { fillStyle: colors.ink, font: `600 16px ${colors.font}`, textBaseline: "middle" });
      flow(pen);
      if (signed) return;
      pen.translate(20, below + 10);
      this.chartOn(pen, width - 40, CHART);
    });
  }

  legend() {
    if (!this.signed) return { to: "1", words: "weight, square-root scale" };
    const most = number(largestSize(this.shown(this.step)));
    const words = `contribution to ${this.answerChoice.name}, square-root scale`;
    return { signed: true, from: `−${most}`, to: most, words };
  }

  subject() {
    return fileParts(this.trace, this.call, this.active);
  }

  table() {
    const weights = this.shown(this.step) ?? [];
    const rows = this.keySide.labels.map((label, at) => [
      this.step,
      this.written[this.step].label,
      at,
      label,
      weights[at],
    ]);
    return [["step", "written", "key", "token", "weight"], ...rows];
  }

  drawn() {
    const weights = this.shown(this.step);
    return {
      call: this.call.id,
      step: this.step,
      written: this.written,
      active: this.active,
      toward: this.signed ? this.answerChoice.answers : null,
      weights: weights && Array.from(weights),
      colors: this.spans.map((span) => span.style.background),
    };
  }

  destroy() {
    this.player.pause();
    this.paint.cancel();
    this.chart.close();
    this.next.close();
    this.answerChoice.close();
    this.rows.close();
  }
}

// What the model could have written at this step: the likeliest next tokens, at a temperature.
//
// POST /api/next answers {next: [{piece, share}]}.

const PAUSE = 200; // milliseconds after the last change of the slider

class NextTokenPanel {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.temperature = 1;
    this.request = latest();
    this.body = el("div");
    const field = slider(
      "Temperature",
      [0.1, 2, 0.1],
      1,
      (x) => x.toFixed(1),
      (x) => {
        this.temperature = x;
        this.ask();
      },
      "Below 1 the likeliest tokens become likelier; above 1 all become more equal",
    );
    this.root = el(
      "section.next-token",
      { "aria-label": "Next token" },
      el("h3", "It could have written"),
      field,
      this.body,
    );
    const model = context.about.models.find((one) => one.name === context.trace.made?.model);
    this.model = model?.task === "generate" ? model.name : null;
    this.root.hidden = !this.model;
  }

  /** The tokens before this step, and the one that was written. @param {string[]} tokens @param {string} chosen */
  show(tokens, chosen) {
    const text = tokens.join("").replace(/[▁Ġ]/g, " ").replace(/Ċ/g, "\n");
    if (text === this.text || !this.model) return;
    this.text = text;
    this.chosen = chosen;
    this.ask();
  }

  ask() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.fetch(), PAUSE);
  }

  async fetch() {
    if (!this.next) this.body.replaceChildren(el("p.quietly", "Computing …"));
    try {
      const body = { model: this.model, text: this.text, temperature: this.temperature };
      const found = await this.request((signal) => this.context.source.post("/api/next", body, signal));
      if (!found) return;
      this.next = found.next;
      const rows = this.next.map(({ piece, share }) => {
        const written = plain(piece) === this.chosen;
        return shareRow(written ? el("strong", `${plain(piece)} ✓`) : plain(piece), share);
      });
      this.body.replaceChildren(el("div.bars", ...rows));
    } catch (error) {
      this.body.replaceChildren(el("p.quietly", error.message));
    }
  }

  close() {
    clearTimeout(this.waiting);
    this.request.end();
  }
}

// The sidebar of the Generation view: the keys that the token of this step looked at most.
//
// `view` has call, rows, keySide, written, step, spans, first and looked(step), as the view has them.

const LISTED = 10;

/** The elements of the list. */
function strongestKeys(view, weights) {
  const signed = view.signed;
  const size = (at) => (signed ? Math.abs(weights[at]) : weights[at]);
  const order = weights ? Array.from(weights.keys()).sort((a, b) => size(b) - size(a)) : [];
  const best = order.slice(0, LISTED).filter((at) => size(at) > 0);
  const rows = best.map((at) =>
    barRow({
      label: view.keySide.labels[at],
      at,
      weight: weights[at],
      share: size(at) / size(best[0]),
      title: `token ${at}`,
      run: () => view.spans[at - view.first]?.scrollIntoView({ block: "nearest" }),
    }),
  );
  const prompt = signed ? null : promptShare(view, view.looked(view.step));
  if (signed) rows.forEach((row, n) => signBar(row, weights[best[n]], view.context.palette));
  const title = signed ? `Contributions to ${view.answerChoice.name}` : `“${view.written[view.step].label}” looked at`;
  return [el("h2", title), el("div.bars", ...rows), ...(prompt == null ? [] : [el("p.quietly", prompt)])];
}

/** How much of the weight lies on the prompt. */
function promptShare(view, weights) {
  if (!weights || view.call.query_side === "target") return null; // a translator has a source, no prompt
  let [on, all] = [0, 0];
  view.keySide.groups.forEach((group, at) => {
    all += weights[at];
    if (group[0] < given(view.trace, view.call)) on += weights[at];
  });
  if (!all) return null;
  if (view.rows.dense) return `${Math.round((100 * on) / all)} % of the weight is on the prompt.`;
  const known = `of a long text each head’s ${STRONGEST} strongest keys are counted`;
  return `At least ${Math.floor(100 * on)} % of the weight is on the prompt: ${known}.`;
}

/** What stands where the model wrote nothing. */
function emptyGeneration(root, context) {
  const writers = new Set(context.about.models.filter(({ task }) => task === "generate").map(({ name }) => name));
  const finished = !writers.has(context.trace.model) && context.about.traces.find(({ model }) => writers.has(model));
  if (finished) queueMicrotask(() => context.pick(finished.id)); // one that is written already says more than none
  const words =
    "Nothing was written in this trace: the model read its text in one pass. This view needs a model that writes.";
  const run = context.sample("generate");
  const button = run
    ? el("button.primary", { onclick: run }, "Let a model write")
    : el("p", "In Python: with regard.watch(model) as seen: model.generate(…), then seen.show().");
  root.append(el("div.empty", el("p", words), button));
  return { update() {}, drawn: () => ({ written: [] }), destroy() {} };
}

/** How many tokens the model was given before it wrote: a prompt, or what a decoder begins with. */
export function given(trace, call) {
  return call.query_side === "target" ? call.steps[0] : trace.prompt;
}

/** The tokens that were written, and the row in which each was.
 * @returns {any[]} [{label, row, after}]
 * A decoder's rows are named by what they write. In a language model row i is token i, and writes the one after it.
 */
export function written(trace, call, side = sideOf(trace, call, "query", "token")) {
  if (call.query_side === "target") return side.labels.map((label, row) => ({ label, row, after: null }));
  const labels = (trace.sides[call.query_side] ?? side.tokens).map(plain); // the last is written and never read
  const out = [];
  for (let at = given(trace, call); at < labels.length && at <= call.queries; at++)
    out.push({ label: labels[at], row: at - 1, after: labels[at - 1] });
  return out;
}

const SPANS = 1500; // tokens of the text that are laid out; of a longer one, the last so many

/** {first: the first token laid out, read: a span for each from there on, written: buttons}. */
function tokenTexts(view) {
  const { labels } = view.keySide;
  const first = Math.max(0, labels.length - SPANS);
  const read = labels
    .slice(first)
    .map((label, at) =>
      el(isWritten(view, at + first) ? "span.token.made" : "span.token", { "data-at": at + first }, label),
    );
  const choose = (step) => () => view.context.state.set({ step });
  const written = view.written.map(({ label }, at) => el("button.token", { tabIndex: -1, onclick: choose(at) }, label));
  return { first, read, written };
}

/** Whether a label of the keys was written by the model, not given to it: a decoder is given its first token. */
function isWritten({ call, keySide, trace }, at) {
  return call.kind === "self" && keySide.groups[at][0] >= given(trace, call);
}

const CHART = 120; // pixels of the chart, from top to bottom

/** The largest size of some numbers. @param {Float32Array | null} weights */
function largestSize(weights) {
  return weights ? weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 0) : 0;
}
