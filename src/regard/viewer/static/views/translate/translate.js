// Translate: type a sentence, see it in the other language by several models, and where each looked for every word.
import { inks, onPaper } from "../../draw/canvas.js";
import { el, segments, tick } from "../../draw/dom.js";
import { bounded } from "../../draw/numbers.js";
import { makeCurves } from "./bleu_by_length_chart.js";
import { TranslationCard } from "./translation_card.js";

/** @type {View} */
export const translate = {
  name: "translate",
  title: "Translate",
  hint: "Point at a word on either side to see where the model looked for it",
  needs: "translate",
  tour: {
    title: "Where a translator looks",
    text: "Type a sentence. Point at a word on either side: the words it was made from light up. Below, the search step by step.",
  },
  mount: (root, context) => new TranslateView(root, context),
};

const PAUSE = 500; // milliseconds without a key after which a sentence is translated
const EXAMPLE = "My sister has a small black dog.";

class TranslateView {
  constructor(root, context) {
    this.context = context;
    this.cards = [];
    this.answers = [];
    this.asked = "";
    this.models = context.about.models.filter((model) => model.task === "translate");
    const { text, beams } = this.settings;
    this.input = el("textarea", {
      rows: 1,
      value: text,
      "aria-label": "Sentence to translate",
      maxlength: this.context.about.limits.text,
      oninput: () => this.typed(),
    });
    this.ticks = this.models.map((model) => [
      model.name,
      tick(model.title ?? model.name, true, (on) => this.choose(model.name, on)),
    ]);
    this.beams = el("input", {
      type: "number",
      min: 1,
      max: this.context.about.limits.beams,
      value: beams,
      onchange: () => this.set({ beams: Number(this.beams.value) || 1 }),
    });
    this.level = segments(
      "Level",
      [
        ["word", "Words"],
        ["token", "Pieces"],
      ],
      "word",
      (level) => this.set({ pieces: level === "token" || null }),
    );
    this.status = el("p.status", { role: "status" });
    this.columns = el("div.translations");
    const controls = el(
      "div.controls",
      {},
      ...this.ticks.map(([, field]) => field),
      el("label.field", {}, el("span", {}, "Beams"), this.beams),
      this.level,
      this.status,
    );
    this.figure = el("div.length-figure");
    root.replaceChildren(el("div.translate", {}, this.input, controls, this.columns, this.figure));
    this.update();
    this.drawLengths();
  }

  /** This view's part of the state: {text, models, beams, pins: {side, list}, step, pieces}. */
  get settings() {
    const given = this.context.state.get().translate ?? {};
    const every = this.models.map((model) => model.name);
    const known = Array.isArray(given.models) ? given.models.filter((name) => every.includes(name)) : every;
    const { models, beams } = this.context.about.limits;
    return {
      ...given,
      text: typeof given.text === "string" ? given.text : EXAMPLE,
      beams: Math.trunc(bounded(given.beams, 1, beams, 5)),
      step: Math.trunc(bounded(given.step, 0, Infinity)),
      models: known.slice(0, models),
    };
  }

  set(patch) {
    this.context.state.set({ translate: { ...this.context.state.get().translate, ...patch } });
  }

  async drawLengths() {
    try {
      const { curves } = await this.context.source.get("/api/length");
      if (!this.closed) this.curves = makeCurves(this.figure, this.context, curves);
    } catch (error) {
      this.context.fail(error);
    }
  }

  typed() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.set({ text: this.input.value, pins: null, step: null }), PAUSE);
  }

  choose(name, on) {
    const { models } = this.settings;
    this.set({ models: on ? [...models, name] : models.filter((one) => one !== name) });
  }

  update() {
    const { text, models, beams, pieces } = this.settings;
    if (document.activeElement !== this.input) this.input.value = text;
    for (const [name, field] of this.ticks) field.show(models.includes(name));
    this.level.show(pieces ? "token" : "word");
    this.curves?.ask();
    const asked = JSON.stringify([text, models, beams]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.translate();
    } else this.show();
  }

  async translate() {
    this.running?.abort();
    const { text, models, beams } = this.settings;
    if (!text.trim() || !models.length) return this.take([]);
    const running = new AbortController();
    this.running = running;
    this.status.textContent = "translating …";
    try {
      const answer = await this.context.source.post("/api/translate", { text, models, beams }, running.signal);
      this.take(answer.translations);
      this.status.textContent = "";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.status.textContent = "";
      this.context.fail(error);
    }
  }

  take(answers) {
    this.answers = answers;
    for (const card of this.cards) card.close();
    this.cards = answers.map(
      (_, at) =>
        new TranslationCard(this.context, {
          pointed: (side, where) => this.point(at, side, where),
          pinned: (side, index) => this.pin(side, index),
          stepped: (step) => this.set({ step }),
        }),
    );
    this.columns.replaceChildren(...this.cards.map((card) => card.root));
    this.show();
    if (answers.length)
      this.context.announce(answers.map((answer) => `${answer.title}: ${answer.translation}`).join(". "));
  }

  show() {
    const { pieces, step } = this.settings;
    this.cards.forEach((card, at) => card.show(this.answers[at], pieces ? "token" : "word", step ?? 0));
    this.relight();
  }

  /** Words of the source are the same in every card; those of the target belong to one. */
  point(at, side, where) {
    if (side === "cell") {
      this.cards.forEach((card, i) =>
        card.light(
          i === at ? { side: "target", list: [where.row], cell: where } : { side: "source", list: [where.column] },
        ),
      );
    } else if (side === "source") this.cards.forEach((card) => card.light({ side, list: where }));
    else if (side === "target") this.cards[at].light({ side, list: where });
    else this.relight();
  }

  pin(side, index) {
    const { pins } = this.settings;
    const list = pins?.side === side ? pins.list : [];
    const next = list.includes(index) ? list.filter((one) => one !== index) : [...list, index];
    this.set({ pins: next.length ? { side, list: next } : null });
  }

  relight() {
    const { pins } = this.settings;
    const sound = pins && ["source", "target"].includes(pins.side) && Array.isArray(pins.list);
    for (const card of this.cards) card.light(sound ? pins : null);
  }

  picture() {
    const cards = this.cards.filter((card) => card.alignment);
    const { paper, ink, font } = inks(this.columns);
    const sizes = cards.map((card) => card.alignment.board.size);
    const width = Math.max(
      320,
      sizes.reduce((sum, size) => sum + size.width, 0),
    );
    const height = Math.max(40, ...sizes.map((size) => size.height)) + 56;
    const draw = (pen) => {
      let x = 0;
      cards.forEach((card, at) => {
        pen.save();
        pen.translate(x, 0);
        Object.assign(pen, { fillStyle: ink, textAlign: "left", font: `600 14px ${font}` });
        pen.fillText(card.answer.title, 16, 22);
        pen.font = `14px ${font}`;
        pen.fillText(card.answer.translation, 16, 42);
        pen.translate(0, 52);
        card.alignment.draw(pen);
        pen.restore();
        x += sizes[at].width;
      });
    };
    return onPaper(width, height, paper, draw);
  }

  table() {
    return this.cards.flatMap(({ answer, table }) => [
      [answer.title, answer.translation],
      ["", ...table.columns],
      ...(table.weights ?? []).map((row, r) => [table.rows[r], ...row]),
    ]);
  }

  drawn() {
    return this.cards.map(({ answer, table, shares, alignment }) => ({
      model: answer.model,
      translation: answer.translation,
      rows: table.rows,
      columns: table.columns,
      weights: table.weights,
      shares,
      lit: alignment?.lit ?? null,
    }));
  }

  destroy() {
    this.closed = true;
    this.curves?.close();
    clearTimeout(this.waiting);
    this.running?.abort();
    for (const card of this.cards) card.close();
  }
}
