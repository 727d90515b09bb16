// Translate: type a sentence, see it in the other language by several models, and where each looked for every word.
import { el, segments, tick } from "../../draw/dom.js";
import { bounded } from "../../draw/numbers.js";
import { makeCurves } from "./bleu_by_length_chart.js";
import { translationPicture, translationTable } from "./translate_export.js";
import { TranslationCard } from "./translation_card.js";

/** @type {View} */
export const translate = {
  name: "translate",
  title: "Translate",
  hint: "Point at a word on either side to see where the model looked for it",
  needs: "translate",
  mount: (root, context) => new TranslateView(root, context),
};

const PAUSE = 500; // milliseconds without a key after which a sentence is translated
/** The last request of each source: who leaves the tab and comes back finds its result. @type {WeakMap<object, any>} */
const requests = new WeakMap();
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
      title: "How many partial translations the search keeps at every step",
      onchange: () => this.chooseBeams(Number(this.beams.value)),
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
    root.replaceChildren(el("div.translate", {}, this.input, this.examples(), controls, this.columns, this.figure));
    this.update();
    this.drawLengths();
  }

  /** This view's part of the state: {text, models, beams, pins: {side, list}, step, pieces}. */
  get settings() {
    const given = this.context.state.get().translate ?? {};
    const every = this.models.map((model) => model.name);
    const known = Array.isArray(given.models) ? given.models.filter((name) => every.includes(name)) : this.suited();
    const { models, beams } = this.context.about.limits;
    return {
      ...given,
      text: typeof given.text === "string" ? given.text : EXAMPLE,
      beams: Math.trunc(bounded(given.beams, 1, beams, 5)),
      step: Math.trunc(bounded(given.step, 0, Infinity)),
      models: known.slice(0, models),
    };
  }

  /** The models that know the words of an example sentence. One without examples knows any. */
  suited(example = EXAMPLE) {
    return this.models
      .filter((model) => !model.examples?.length || model.examples.includes(example))
      .map((model) => model.name);
  }

  /** A button for each example sentence of the models. */
  examples() {
    const sentences = [...new Set(this.models.flatMap((model) => model.examples ?? []))];
    const buttons = sentences.map((text) =>
      el("button.quiet.example", { type: "button", title: text, onclick: () => this.tryExample(text) }, text),
    );
    return el("div.examples", { role: "group", "aria-label": "Examples" }, el("span.quietly", {}, "Try"), ...buttons);
  }

  /** An example sentence, and the models that know its words. */
  tryExample(text) {
    this.input.value = text;
    this.set({ text, models: this.suited(text), pins: null, step: null });
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

  /** A number of beams; outside of what the server takes, the nearest that it does take, and a word about it. */
  chooseBeams(wanted) {
    const most = this.context.about.limits.beams;
    const beams = Math.trunc(bounded(wanted, 1, most, 1));
    this.beams.value = String(beams);
    this.set({ beams });
    if (beams !== wanted) this.say(`The search keeps 1 to ${most} beams; ${beams} is used.`);
  }

  say(text) {
    this.status.textContent = text;
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
    if (document.activeElement !== this.beams) this.beams.value = String(beams);
    this.curves?.ask();
    const asked = JSON.stringify([text, models, beams]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.translate();
    } else this.show();
  }

  async translate() {
    const { text, models, beams } = this.settings;
    if (!text.trim() || !models.length) {
      this.forget();
      this.say(models.length ? "Type a sentence." : "Tick a model to translate with.");
      return this.take([]);
    }
    const { source } = this.context;
    const { asked } = this;
    if (requests.get(source)?.asked !== asked) {
      this.forget();
      const control = new AbortController();
      requests.set(source, {
        asked,
        control,
        answer: source.post("/api/translate", { text, models, beams }, control.signal),
      });
    }
    const request = requests.get(source);
    this.say("Translating …");
    if (!this.cards.length) this.columns.replaceChildren(...models.map((name) => this.placeholder(name)));
    this.columns.classList.add("waiting");
    try {
      const { translations } = await request.answer;
      if (!this.closed && asked === this.asked) this.take(translations);
    } catch (error) {
      if (requests.get(source) === request) requests.delete(source);
      if (this.closed || error.name === "AbortError") return;
      this.take([]);
      this.say("");
      this.context.fail(error);
    }
  }

  /** Ends the request that is under way: another one takes its place, or none. */
  forget() {
    requests.get(this.context.source)?.control.abort();
    requests.delete(this.context.source);
  }

  /** What stands where a translation will. */
  placeholder(name) {
    const title = this.models.find((model) => model.name === name)?.title ?? name;
    return el("div.translation.coming", {}, el("h2", {}, title), el("p", {}, el("progress"), " Translating …"));
  }

  take(answers) {
    this.answers = answers;
    this.columns.classList.remove("waiting");
    if (answers.length) this.say("");
    for (const card of this.cards) card.close();
    this.cards = answers.map(
      (_, at) =>
        new TranslationCard(this.context, {
          pointed: (side, where) => this.point(at, side, where),
          pinned: (side, index) => this.pin(at, side, index),
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

  /** What is pointed at in one card is lit in all of them: other cards have the same words at other places. */
  point(at, side, where) {
    if (side === "cell") {
      const same = this.cards[at].names("source", [where.column]);
      this.cards.forEach((card, i) =>
        card.light(
          i === at
            ? { side: "target", list: [where.row], cell: where }
            : { side: "source", list: card.places("source", same) },
        ),
      );
    } else if (side) {
      const names = this.cards[at].names(side, where);
      this.cards.forEach((card, i) => card.light({ side, list: i === at ? where : card.places(side, names) }));
    } else this.relight();
  }

  /** Words of the source are the same for all models, and kept by their places; others are kept by name as well. */
  pin(at, side, index) {
    const { pins, pieces } = this.settings;
    const card = this.cards[at];
    const list = pins?.side === side ? this.pinned(card, pins) : [];
    const next = list.includes(index) ? list.filter((one) => one !== index) : [...list, index];
    const names = side === "target" || pieces ? { names: card.names(side, next) } : {};
    this.set({ pins: next.length ? { side, list: next, ...names } : null });
  }

  /** The places of the pinned words in a card. */
  pinned(card, pins) {
    return Array.isArray(pins.names) ? card.places(pins.side, pins.names) : pins.list;
  }

  relight() {
    const { pins } = this.settings;
    const sound = pins && ["source", "target"].includes(pins.side) && Array.isArray(pins.list);
    for (const card of this.cards)
      card.light(sound ? { side: pins.side, list: this.pinned(card, pins), pinned: true } : null);
  }

  picture() {
    return translationPicture(this);
  }

  table() {
    return translationTable(this);
  }

  legend() {
    return { to: "1", words: "weight, square-root scale: rows look at columns" };
  }

  caption() {
    return this.settings.text;
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
    for (const card of this.cards) card.close();
  }
}
