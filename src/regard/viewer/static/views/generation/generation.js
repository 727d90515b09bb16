// Generation: a scrubber over the tokens a model wrote, and what each looked at while it was written.

import { callOf, fileParts } from "../../data/calls.js";
import { Links } from "../../data/links.js";
import { plain, sideOf } from "../../data/tokens.js";
import { Rows, STRONGEST } from "../../data/weight_rows.js";
import { callChoice } from "../../draw/call_choice.js";
import { fit, inks, painter } from "../../draw/canvas.js";
import { el, tick } from "../../draw/dom.js";
import { headButtons } from "../../draw/head_buttons.js";
import { number } from "../../draw/numbers.js";
import { drawFlow, shade } from "../../draw/token_flow.js";
import { barRow } from "../../draw/weight_bars.js";

const LISTED = 10;
const SPANS = 1500; // tokens of the text that are laid out; of a longer one, the last so many
const PACE = 450; // milliseconds a token while playing
const CHART = 120; // pixels
const CHARTED =
  "One column for each token written, one row for each token it could see, from the first down; " +
  "the largest weight where several share a pixel.";

export const generation = {
  name: "generation",
  title: "Generation",
  hint: "Token by token: what the model looked at while it wrote",
  needs: "trace",
  mount: (root, context) => {
    const wrote = context.trace.calls.filter((call) => call.steps.length > 1);
    return wrote.length ? new Generation(root, context, wrote) : nothing(root, context);
  },
};

/** What stands where the model wrote nothing. */
function nothing(root, context) {
  const words =
    "Nothing was written in this trace: the model read its text in one pass. " +
    "Choose a model that writes, or watch model.generate(…).";
  const button = context.read && el("button.primary", { type: "button", onclick: context.read }, "Read a text …");
  root.append(el("div.empty", {}, el("p", {}, words), button));
  return { update() {}, drawn: () => ({ written: [] }), destroy() {} };
}

class Generation {
  constructor(root, context, wrote) {
    Object.assign(this, { context, trace: context.trace, wrote, playing: 0 });
    this.paint = painter(() => this.draw());
    this.build(root);
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.chartBox);
    this.update(context.state.get());
  }

  build(root) {
    const { state } = this.context;
    this.callBox = el("span");
    this.buttons = headButtons((chosen) => state.set({ heads: chosen }));
    this.sink = tick(
      "Mute first",
      false,
      (on) => state.set({ mute: on ? ["first"] : null }),
      "Leave the first token out: it is often a sink (m)",
    );
    this.slider = el("input.scrub", {
      type: "range",
      min: 0,
      step: 1,
      "aria-label": "Token written",
      oninput: () => state.set({ step: Number(this.slider.value) }),
    });
    this.play = el("button", { type: "button", onclick: () => this.toggle() }, "Play");
    this.now = el("p.now", { role: "status" });
    this.text = el("div.tokens", { role: "group", "aria-label": "What it looked at" });
    this.out = el("div.tokens", { role: "group", "aria-label": "What it wrote", "data-arrows": true });
    this.chart = el("canvas", {
      role: "img",
      "aria-label": "What every token looked at: one column per token written",
    });
    this.chartBox = el("div.chart", {}, this.chart);
    this.scale = el("p.quietly.small");
    this.aside = el("aside.aside", { "aria-label": "The strongest keys" });
    this.chart.addEventListener("pointerdown", (event) => this.jump(event));
    this.chart.addEventListener("pointermove", (event) => event.buttons && this.jump(event));
    const reading = el(
      "div.drawing.plain",
      {},
      el("div.scrubber", {}, this.play, this.slider),
      this.now,
      el("h2.quietly", {}, "It looked at"),
      this.text,
      this.scale,
      el("h2.quietly", {}, "It wrote"),
      this.out,
      el("h2.quietly", {}, "Over time"),
      this.chartBox,
      el("p.quietly.small", {}, CHARTED),
    );
    root.append(
      el("div.controls", {}, this.callBox, this.buttons, this.sink),
      el("div.split", {}, reading, this.aside),
    );
  }

  // State

  update(state) {
    this.state = state;
    const found = callOf(this.trace, state);
    const call = this.wrote.includes(found) ? found : this.wrote[0];
    if (call !== this.call) {
      this.rows?.close();
      this.call = call;
      this.rows = new Rows(
        this.context.source,
        this.trace,
        call,
        state.entry ?? 0,
        () => this.paint(),
        this.context.fail,
      );
      this.links = null;
      const shown = { ...this.trace, calls: this.wrote };
      this.callBox.replaceChildren(callChoice(shown, call, (id) => this.context.state.set({ call: id })));
    }
    if (!this.links || this.level !== this.context.level) {
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
    this.paint();
  }

  layText() {
    this.first = Math.max(0, this.keySide.labels.length - SPANS);
    this.spans = this.keySide.labels
      .slice(this.first)
      .map((label, at) =>
        el(this.made(at + this.first) ? "span.token.made" : "span.token", { "data-at": at + this.first }, label),
      );
    this.text.replaceChildren(
      ...(this.first ? [el("span.quietly", {}, `(${this.first} tokens before) `)] : []),
      ...this.spans,
    );
    this.outs = this.written.map(({ label }, at) =>
      el("button.token", { type: "button", tabIndex: -1, onclick: () => this.context.state.set({ step: at }) }, label),
    );
    this.out.replaceChildren(...this.outs);
  }

  /** Whether a label of the keys was written by the model, not given to it: a decoder is given its first token. */
  made(at) {
    return this.call.kind === "self" && this.keySide.groups[at][0] >= given(this.trace, this.call);
  }

  // Time

  get keys() {
    const to = (step) => this.context.state.set({ step: Math.min(this.written.length - 1, Math.max(0, step)) });
    return [
      { key: "ArrowRight", text: "next token", run: () => to(this.step + 1) },
      { key: "ArrowLeft", text: "previous token", run: () => to(this.step - 1) },
      { key: "Home", text: "first token written", run: () => to(0) },
      { key: "End", text: "last token written", run: () => to(this.written.length - 1) },
      { key: " ", text: "play or pause", run: () => this.toggle() },
      {
        key: "m",
        text: "mute the first token",
        run: () => this.context.state.set({ mute: this.muted ? null : ["first"] }),
      },
      { key: "a", text: "all heads", run: () => this.context.state.set({ heads: null }) },
    ];
  }

  toggle() {
    if (this.playing) this.pause();
    else {
      if (this.step === this.written.length - 1) this.context.state.set({ step: 0 });
      this.play.textContent = "Pause";
      this.playing = setInterval(() => {
        if (this.step + 1 >= this.written.length) this.pause();
        else this.context.state.set({ step: this.step + 1 });
      }, PACE);
    }
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
    this.play.textContent = "Play";
  }

  jump(event) {
    const { left, width } = this.chart.getBoundingClientRect();
    const step = Math.floor(((event.clientX - left) / width) * this.written.length);
    this.context.state.set({ step: Math.min(this.written.length - 1, Math.max(0, step)) });
  }

  // Drawing

  /** What the token of one step looked at: the mean over the heads that are on, by label; null while it is fetched. */
  looked(step) {
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
    const last = `row ${row}${after ? `, the query of “${after}”` : ""}`;
    this.now.replaceChildren(
      el("strong", {}, label),
      ` token ${this.step + 1} of ${this.written.length}, from ${last}`,
    );
    const most = weights ? weights.reduce((a, b) => Math.max(a, b), 0) : 0;
    const unread = this.call.kind === "self" ? row + 1 : Infinity;
    this.spans.forEach((span, at) => {
      shade(span, this.amount(weights, at + this.first, most), palette);
      span.classList.toggle("unread", this.keySide.groups[at + this.first][0] >= unread);
      span.title = weights ? number(weights[at + this.first]) : "";
    });
    this.outs.forEach((button, at) => {
      button.setAttribute("aria-pressed", String(at === this.step));
      button.classList.toggle("later", at > this.step);
      button.tabIndex = at === this.step ? 0 : -1;
    });
    this.scale.textContent = `Mean over ${this.active.length} heads; colours from 0 to ${number(most)}, by square roots.`;
    this.list(weights);
    this.drawChart();
  }

  amount(weights, at, most) {
    return weights && most ? Math.sqrt(weights[at] / most) : 0;
  }

  list(weights) {
    const order = weights ? Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]) : [];
    const best = order.slice(0, LISTED).filter((at) => weights[at] > 0);
    const rows = best.map((at) =>
      barRow({
        label: this.keySide.labels[at],
        at,
        weight: weights[at],
        share: weights[at] / weights[best[0]],
        title: `token ${at}`,
        run: () => this.spans[at - this.first]?.scrollIntoView({ block: "nearest" }),
      }),
    );
    const prompt = this.promptWords(this.looked(this.step));
    this.aside.replaceChildren(
      el("h2", {}, `“${this.written[this.step].label}” looked at`),
      el("div.bars", {}, ...rows),
      ...(prompt == null ? [] : [el("p.quietly", {}, prompt)]),
    );
  }

  promptWords(weights) {
    if (!weights || this.call.query_side === "target") return null; // a translator has a source, no prompt
    let [on, all] = [0, 0];
    this.keySide.groups.forEach((group, at) => {
      all += weights[at];
      if (group[0] < given(this.trace, this.call)) on += weights[at];
    });
    if (!all) return null;
    if (this.rows.dense) return `${Math.round((100 * on) / all)} % of the weight is on the prompt.`;
    const known = `of a long text each head’s ${STRONGEST} strongest keys are counted`;
    return `At least ${Math.floor(100 * on)} % of the weight is on the prompt: ${known}.`;
  }

  drawChart(ctx = null, width = this.chartBox.clientWidth) {
    if (!width) return;
    ctx ??= fit(this.chart, width, CHART);
    const { palette } = this.context;
    ctx.fillStyle = palette.ramp(0);
    ctx.fillRect(0, 0, width, CHART);
    const labels = this.keySide.labels.length;
    const across = width / this.written.length;
    const bins = Math.min(labels, CHART);
    for (let step = 0; step < this.written.length; step++) {
      const weights = this.shown(step);
      if (!weights) continue;
      const most = new Float32Array(bins);
      weights.forEach((weight, at) => {
        const bin = Math.floor((at * bins) / labels);
        most[bin] = Math.max(most[bin], weight);
      });
      most.forEach((weight, bin) => {
        if (weight < 0.001) return;
        ctx.fillStyle = palette.ramp(Math.sqrt(weight));
        ctx.fillRect(step * across, (bin * CHART) / bins, Math.max(1, across - (across > 6 ? 1 : 0)), CHART / bins);
      });
    }
    ctx.strokeStyle = getComputedStyle(this.chartBox).getPropertyValue("--accent").trim();
    ctx.lineWidth = 2;
    ctx.strokeRect(this.step * across, 1, across, CHART - 2);
  }

  // Export and tests

  picture() {
    const [width, colors, { palette }] = [this.chartBox.clientWidth + 40, inks(this.chartBox), this.context];
    const weights = this.shown(this.step);
    const most = weights ? weights.reduce((a, b) => Math.max(a, b), 0) : 0;
    const items = this.keySide.labels
      .slice(this.first)
      .map((label, at) => ({ label, shade: this.amount(weights, at + this.first, most) }));
    const ruler = el("canvas").getContext("2d");
    const below = drawFlow(ruler, items, 20, 48, width - 40, palette, colors);
    return {
      width,
      height: below + CHART + 30,
      draw: (ctx) => {
        ctx.fillStyle = colors.paper;
        ctx.fillRect(0, 0, width, below + CHART + 30);
        ctx.fillStyle = colors.ink;
        ctx.font = `600 16px ${colors.font}`;
        ctx.textBaseline = "middle";
        ctx.fillText(`${this.written[this.step].label} looked at`, 20, 24);
        drawFlow(ctx, items, 20, 48, width - 40, palette, colors);
        ctx.save();
        ctx.translate(20, below + 10);
        this.drawChart(ctx, width - 40);
        ctx.restore();
      },
    };
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
      weights: weights && Array.from(weights),
      colors: this.spans.map((span) => span.style.background),
    };
  }

  destroy() {
    this.pause();
    this.paint.cancel();
    this.watcher.disconnect();
    this.rows.close();
  }
}

/** How many tokens the model was given before it wrote: a prompt, or what a decoder begins with. */
function given(trace, call) {
  return call.query_side === "target" ? call.steps[0] : trace.prompt;
}

/** The tokens that were written, and the row in which each was: [{label, row, after}].
 *
 * A decoder's rows are named by what they write. In a language model row i is token i, and writes the one after it.
 */
function written(trace, call, side) {
  if (call.query_side === "target") return side.labels.map((label, row) => ({ label, row, after: null }));
  const labels = (trace.sides[call.query_side] ?? side.tokens).map(plain); // the last is written and never read
  const out = [];
  for (let at = given(trace, call); at < labels.length && at <= call.queries; at++)
    out.push({ label: labels[at], row: at - 1, after: labels[at - 1] });
  return out;
}
