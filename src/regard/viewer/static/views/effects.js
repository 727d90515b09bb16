// Effects: every head of every layer with what it contributes to an answer, and how the answer changes without it.
import { latest } from "../data/sources.js";
import { answerSentence, callOf, ownName } from "../data/tokens.js";
import { el, number, table } from "../draw/elements.js";
import { AnswerChoice } from "./answer_choice.js";

const AT_ONCE = 32; // heads of one request; the server answers with as many as half a second allows
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
    ": the change that the gradient predicts, minus the sum of its contributions Σ g · o. ",
    "Right of the line the number rises without the head, left of it it falls.",
  ];
}

class EffectsView {
  /** @type {{call: string, head: number, estimate: number, change: number | null}[]} */
  heads = [];
  /** Of the present run: heads that have a result, and all of them. */
  run = { going: false, done: 0, count: 0, why: "" };

  constructor(root, context) {
    this.context = context;
    this.trace = context.trace;
    this.request = latest();
    this.answerChoice = new AnswerChoice(context, () => this.update(), { always: true });
    this.status = el("p.effects-status", { role: "status" });
    this.bar = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Heads that were silenced" });
    this.count = el("span.effects-count");
    this.about = el("p.quietly.effects-about", { hidden: true }, ...explanation());
    this.more = el("button", {
      hidden: true,
      onclick: () => this.silence(this.heads.filter((one) => one.change == null)),
    });
    this.stop = el("button", { hidden: true, onclick: () => this.request.end() }, "Stop");
    this.box = el("div.effects-table", { tabIndex: 0, role: "region", "aria-label": "Heads" });
    root.append(
      el("div.controls.folds", this.answerChoice.root),
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
      this.request.end();
      if (key) this.begin();
    }
    this.show();
  }

  /** Heads by the size of their estimates, and the strongest of them silenced. */
  begin() {
    const { answers } = this.answerChoice;
    this.heads = (answers?.calls ?? []).flatMap((call) =>
      call.totals.map((total, head) => ({ call: call.id, head, estimate: -total, change: null })),
    );
    this.heads.sort((a, b) => Math.abs(b.estimate) - Math.abs(a.estimate));
    this.silence(this.heads.slice(0, FIRST));
  }

  /** The change of each of these heads: the answer's score without it, less the score with it. They are asked for a few at a
   * time, so that results and progress come as they are computed.
   */
  async silence(heads) {
    const { source, trace } = this.context;
    const { answers, target } = this.answerChoice;
    const path = `/api/traces/${encodeURIComponent(trace.id)}/silenced`;
    const run = { going: true, done: 0, count: heads.length, why: "" };
    this.run = run;
    try {
      while (run.done < heads.length) {
        const next = heads.slice(run.done, run.done + AT_ONCE);
        const names = next.map(({ call, head }) => `${call}.${head}`).join(",");
        const found = await this.request((signal) => source.get(path, { ...target, heads: names }, signal));
        if (!found || !answers) break;
        found.values.forEach((value, at) => (next[at].change = value - answers.value));
        run.done += found.values.length;
        if (run === this.run) this.show();
      }
    } catch (error) {
      run.why = `Heads cannot be silenced: ${error.message}`;
    }
    run.going = false;
    if (run === this.run && !this.closed) this.show();
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
    const { going: running, done, count, why } = this.run;
    this.more.hidden = !heads.length || !left || running || Boolean(why);
    this.more.textContent = `Silence the other ${left} heads`;
    this.stop.hidden = !running;
    this.bar.hidden = !running;
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
    return table("table.figures.effects", ["head", "without it", "estimate"], rows);
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
      running: this.run.going,
    };
  }

  destroy() {
    this.closed = true;
    this.request.end();
    this.answerChoice.close();
  }
}
