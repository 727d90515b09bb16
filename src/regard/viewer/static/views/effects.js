// Effects: every head of every layer with what it contributes to an answer, and how the answer changes without it.
import { answerSentence, callOf, ownName } from "../data/tokens.js";
import { el, number, table } from "../draw/elements.js";
import { AnswerChoice } from "./contributions.js";

const FIRST = 12; // heads that are silenced without being asked: those of the largest estimates

/** @type {View} */
export const effects = {
  name: "effects",
  key: "f",
  title: "Effects",
  hint: "What every head does to an answer: its contributions, and the answer without it",
  needs: "trace",
  tokensOnly: true,
  mount: (root, context) => new EffectsView(root, context),
};

/** What the columns say. */
function explanation() {
  return [
    el("b", "without it"),
    ": the change of this number when the head’s output is set to zero, measured. ",
    el("b", "estimate"),
    ": the change that the gradient predicts, without running the model again. ",
    "Right of the line the number rises without the head, left of it it falls.",
  ];
}

class EffectsView {
  /** @type {{call: string, head: number, estimate: number, change: number | null}[]} */
  heads = [];
  /** @type {SilencedHeads | null} */
  silenced = null;

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.answerChoice = new AnswerChoice(context, () => this.update(), { always: true });
    this.status = el("p.effects-status", { role: "status" });
    this.bar = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Heads that were silenced" });
    this.count = el("span.effects-count");
    this.about = el("p.quietly.effects-about", { hidden: true }, ...explanation());
    this.more = el("button", { hidden: true, onclick: () => this.runAll() });
    this.stop = el("button", { hidden: true, onclick: () => this.silenced?.close() }, "Stop");
    this.box = el("div.effects-table", { tabIndex: 0, role: "region", "aria-label": "Heads" });
    root.append(
      el("div.controls", this.answerChoice.root),
      el(
        "div.drawing.plain",
        this.status,
        el("p.controls.inline", this.more, this.stop, this.bar, this.count),
        this.about,
        this.box,
      ),
    );
    this.update();
  }

  update() {
    if (this.closed) return;
    this.answerChoice.update(callOf(this.trace, this.context.state.get()));
    const { key } = this.answerChoice;
    if (key !== this.shownKey) {
      this.shownKey = key;
      this.silenced?.close();
      this.silenced = null;
      if (key) this.begin();
    }
    this.show();
  }

  /** Heads by the size of their estimates, and the strongest of them silenced. */
  begin() {
    const { answers, target } = this.answerChoice;
    this.heads = (answers?.calls ?? []).flatMap((call) =>
      call.totals.map((total, head) => ({ call: call.id, head, estimate: -total, change: null })),
    );
    this.heads.sort((a, b) => Math.abs(b.estimate) - Math.abs(a.estimate));
    this.silenced = new SilencedHeads(this.context, target, answers?.value ?? 0, () => this.show());
    this.silenced.run(this.heads.slice(0, FIRST));
  }

  runAll() {
    this.silenced?.run(this.heads.filter((one) => one.change == null));
  }

  name({ call, head }) {
    const found = this.trace.calls.find((one) => one.id === call) ?? this.trace.calls[0];
    return `${ownName(this.trace, found)}.${head}`;
  }

  /** Rows by the size of what was measured, those that were only estimated after them. */
  sorted() {
    const size = (one) => (one.change == null ? -1 : Math.abs(one.change));
    return [...this.heads].sort((a, b) => size(b) - size(a) || Math.abs(b.estimate) - Math.abs(a.estimate));
  }

  show() {
    const { answers } = this.answerChoice;
    const heads = answers ? this.sorted() : [];
    const left = heads.filter((one) => one.change == null).length;
    const running = Boolean(this.silenced?.running);
    this.more.hidden = !heads.length || !left || running || Boolean(this.silenced?.why);
    this.more.textContent = `Silence the other ${left} heads`;
    this.stop.hidden = !running;
    this.bar.hidden = !running;
    const { done = 0, count = 0, why = "" } = this.silenced ?? {};
    this.bar.max = Math.max(1, count);
    this.bar.value = done;
    this.count.textContent = running ? `${done} of ${count}` : "";
    const ended = `${heads.length - left} of ${heads.length} heads were silenced, one at a time.`;
    this.status.textContent = answers
      ? `${answerSentence(answers, this.trace, number(answers.value))} ${why || (running ? `Silencing ${count} heads …` : ended)}`
      : "";
    this.about.hidden = !heads.length;
    const held = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.head;
    this.box.replaceChildren(...(heads.length ? [this.tableOf(heads)] : []));
    if (held) /** @type {HTMLElement | null} */ (this.box.querySelector(`[data-head="${held}"]`))?.focus();
  }

  tableOf(heads) {
    const sizes = heads.flatMap((one) => [Math.abs(one.estimate), Math.abs(one.change ?? 0)]);
    const most = Math.max(1e-30, ...sizes);
    const rows = heads.map((one) => {
      const attributes = { "data-head": this.name(one), title: "Open in Heads", onclick: () => this.open(one) };
      const name = el("th", { scope: "row" }, el("button.quiet", attributes, this.name(one)));
      return el("tr", name, this.cell(one.change, most), this.cell(one.estimate, most));
    });
    const titles = [
      ["head", "Layer and head; opens it in Heads"],
      ["without it", "The score of the answer with this head set to zero, less the score with it: measured"],
      ["estimate", "Minus the sum of its contributions, Σ g · o: what the gradient expects of that"],
    ].map(([name, title]) => el("th", { scope: "col", title }, name));
    return table("table.figures.effects", titles, rows);
  }

  /** A number, and a bar from the zero line in the middle: to the right where it is positive. */
  cell(value, most) {
    if (value == null) return el("td.number.quietly", "–");
    const fill = el("span.effects-bar", { "aria-hidden": "true" });
    fill.style.width = `${(50 * Math.abs(value)) / most}%`;
    fill.style[value < 0 ? "right" : "left"] = "50%";
    fill.style.background = this.context.palette.signed(value < 0 ? -0.45 : 0.45);
    const text = `${value > 0 ? "+" : ""}${number(value)}`;
    return el("td.number", el("div.effects-cell", el("span.effects-value", text), el("span.effects-track", fill)));
  }

  /** The head in Heads, with its contributions to the same answer. */
  open({ call, head }) {
    const toward = this.context.state.get().toward ?? this.answerChoice.target;
    this.context.state.set({ view: "heads", call, heads: [head], head, toward });
  }

  table() {
    const rows = this.sorted().map((one) => [this.name(one), one.change, one.estimate]);
    return [["head", "without it", "estimate"], ...rows];
  }

  subject() {
    return ["effects"];
  }

  drawn() {
    return {
      toward: this.answerChoice.answers,
      heads: this.answerChoice.answers ? this.sorted() : [],
      running: this.silenced?.running,
    };
  }

  destroy() {
    this.closed = true;
    this.silenced?.close();
    this.answerChoice.close();
  }
}

// Heads that are silenced one at a time: asked for a few at a time, so that results and progress come as they are computed.

const AT_ONCE = 32; // heads of one request; the server answers with as many as half a second allows

class SilencedHeads {
  /** `arrived()` is called when some heads have a result. @param {Context} context @param {() => void} arrived */
  constructor({ source, trace }, target, value, arrived) {
    this.source = source;
    this.path = `/api/traces/${encodeURIComponent(trace.id)}/silenced`;
    this.target = target;
    this.value = value;
    this.arrived = arrived;
    this.running = false;
    this.done = 0; // heads of the present run that have a result
    this.count = 0; // heads of the present run
    this.why = "";
    this.ending = new AbortController();
  }

  /** Sets `change` of each of these {call, head}: the answer's score without the head, less the score with it. */
  async run(heads) {
    if (this.running || this.ending.signal.aborted || !heads.length) return;
    this.running = true;
    [this.done, this.count] = [0, heads.length];
    try {
      while (this.done < heads.length && this.running) {
        const next = heads.slice(this.done, this.done + AT_ONCE);
        const names = next.map(({ call, head }) => `${call}.${head}`).join(",");
        const { values } = await this.source.get(this.path, { ...this.target, heads: names }, this.ending.signal);
        values.forEach((value, at) => {
          next[at].change = value - this.value;
        });
        this.done += values.length;
        this.arrived();
      }
    } catch (error) {
      if (error.name !== "AbortError") this.why = `Heads cannot be silenced: ${error.message}`;
    }
    this.running = false;
    this.arrived();
  }

  close() {
    this.running = false;
    this.ending.abort();
    this.ending = new AbortController();
  }
}
