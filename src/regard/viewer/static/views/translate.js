// Translate: type a sentence, see it in the other language by several models, and where each looked for every word.
import { plain, unknownNote } from "../data/tokens.js";
import { inks, onPaper, write } from "../draw/canvas.js";
import { bounded, el, number, segments, shareCells, slider, tick } from "../draw/elements.js";
import { Alignment } from "../draw/weight_pictures.js";

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
    this.level = segments("Level", { word: "Words", token: "Pieces" }, "word", (level) =>
      this.set({ pieces: level === "token" || null }),
    );
    this.status = el("p.status", { role: "status" });
    this.columns = el("div.translations");
    const controls = el(
      "div.controls",
      ...this.ticks.map(([, field]) => field),
      el("label.field", el("span", "Beams"), this.beams),
      this.level,
      this.status,
    );
    root.replaceChildren(el("div.translate", this.input, this.examples(), controls, this.columns));
    this.update();
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
      el("button.quiet.example", { title: text, onclick: () => this.tryExample(text) }, text),
    );
    return el("div.examples", { role: "group", "aria-label": "Examples" }, el("span.quietly", "Try"), ...buttons);
  }

  /** An example sentence, and the models that know its words. */
  tryExample(text) {
    this.input.value = text;
    this.set({ text, models: this.suited(text), pins: null, step: null });
  }

  set(patch) {
    this.context.state.set({ translate: { ...this.context.state.get().translate, ...patch } });
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
    return el("div.translation.coming", el("h2", title), el("p", el("progress"), " Translating …"));
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

  /** The alignments side by side, each below its title and translation; null where there are none. */
  picture() {
    const cards = this.cards.filter((card) => card.alignment);
    if (!cards.length) return null;
    const { paper, ink, font } = inks(this.columns);
    const sizes = cards.map((card) => card.alignment.board.size);
    const all = sizes.reduce((sum, size) => sum + size.width, 0);
    const width = Math.max(320, all);
    const height = Math.max(40, ...sizes.map((size) => size.height)) + 56;
    return onPaper(width, height, paper, (pen) => {
      pen.save();
      cards.forEach(({ answer, alignment }, at) => {
        write(pen, answer.title, 16, 22, { fillStyle: ink, textAlign: "left", font: `600 14px ${font}` });
        write(pen, answer.translation, 16, 42, { font: `14px ${font}` });
        pen.translate(0, 52);
        alignment.draw(pen);
        pen.translate(sizes[at].width, -52);
      });
      pen.restore();
    });
  }

  table() {
    return this.cards.flatMap(({ answer, table }) => [
      [answer.title, answer.translation],
      ["", ...table.columns],
      ...(table.weights ?? []).map((row, r) => [table.rows[r], ...row]),
    ]);
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
    clearTimeout(this.waiting);
    for (const card of this.cards) card.close();
  }
}

// One model's translation: both sentences, the alignment between them, and how the search found it, step by step.
//
// POST /api/translate answers {translations: [{model, title, translation, source: pieces, source_words: the word of
// each, target, target_words, weights: [target][source] or null, the mean of `maps`, fidelity, steps: [{prefix,
// alternatives: [{piece, logprob}], beam: [{text, score}]}], generation: p_gen of each piece or null}]}; the last piece of
// either side ends the sentence.

/** Pieces gathered into words: to a word the sum, from a word the mean (Clark et al. 2019). */
export function gathered(answer, level) {
  const groups = (pieces, words) => {
    if (level === "token") return pieces.map((_, i) => [i]);
    const found = new Map();
    words.forEach((word, i) => found.set(word, [...(found.get(word) ?? []), i]));
    return [...found.values()];
  };
  const label = (pieces) => (group) => plain(group.map((i) => pieces[i]).join("")).trim();
  const rows = groups(answer.target, answer.target_words);
  const columns = groups(answer.source, answer.source_words);
  const mean = (row, column) =>
    row.reduce((sum, i) => sum + column.reduce((part, j) => part + answer.weights[i][j], 0), 0) / row.length;
  return {
    rows: rows.map(label(answer.target)),
    columns: columns.map(label(answer.source)),
    copies: copyShares(answer.generation, rows),
    weights: answer.weights ? rows.map((row) => columns.map((column) => mean(row, column))) : null,
  };
}

/** `pointed(side, list)`: words under the pointer, "source" or "target"; `pinned(side, index)`: one was clicked. */
class TranslationCard {
  /** @type {Alignment} */
  alignment;
  /** @type {ReturnType<typeof gathered>} */
  table;
  /** @type {any} */
  scrubber;

  constructor(context, { pointed, pinned, stepped }) {
    this.context = context;
    this.pointed = pointed;
    this.pinned = pinned;
    this.stepped = stepped;
    this.title = el("h2");
    this.lines = { source: el("p.sentence"), target: el("p.sentence.target") };
    this.copying = el("div");
    this.stage = el("div.alignment");
    this.steps = el("div.steps");
    this.root = el(
      "section.translation",
      this.title,
      this.lines.source,
      this.lines.target,
      this.copying,
      el("div.matrix-and-steps", this.stage, this.steps),
    );
  }

  /** After `root` is on the page. */
  show(answer, level, step) {
    this.answer = answer;
    this.table = gathered(answer, level);
    const { rows, columns, weights } = this.table;
    const maps = answer.maps > 1 ? [`mean of ${answer.maps} heads`] : [];
    const faith = answer.fidelity ? [`weights checked, error ${number(answer.fidelity.error)}`] : [];
    const remark = weights ? [...maps, ...faith].join(" · ") : "without attention";
    this.title.replaceChildren(answer.title, el("span.quietly", remark || " "));
    this.words("source", columns);
    this.words("target", rows);
    const summary = copySummary(this.table);
    const unknown = unknownNote([...columns, ...rows]);
    this.copying.replaceChildren(...(summary ? [summary] : []), ...(unknown ? [el("p.quietly", unknown)] : []));
    this.stage.hidden = !weights;
    if (weights) {
      this.alignment ??= new Alignment(this.stage, this.context, (cell) => this.pointed(cell ? "cell" : null, cell));
      this.alignment.show(rows, columns, weights, answer.title);
      this.stage.style.width = `${this.alignment.width}px`;
      this.stage.style.height = `${Math.min(560, this.alignment.height)}px`;
    }
    this.showSteps(step);
  }

  /** Words of one side by name: [its text, how many of the same text stand before it]. */
  names(side, list) {
    const labels = side === "source" ? this.table.columns : this.table.rows;
    return list.map((at) => [labels[at], labels.slice(0, at).filter((label) => label === labels[at]).length]);
  }

  /** The places of words by name; those that this translation does not have are left out. */
  places(side, names) {
    const labels = side === "source" ? this.table.columns : this.table.rows;
    return names
      .map(([text, before]) => {
        const same = labels.flatMap((label, at) => (label === text ? [at] : []));
        return same[before] ?? same[0] ?? -1;
      })
      .filter((at) => at >= 0);
  }

  words(side, labels) {
    const copied = labels.map((_, at) => (side === "target" ? copyNote(this.table, at) : ""));
    const buttons = labels.map((text, at) =>
      el(
        copied[at] ? "button.word.copied" : "button.word",
        {
          title: copied[at],
          "data-copied": copied[at] || null,
          onpointerenter: () => this.pointed(side, [at]),
          onpointerleave: () => this.pointed(null),
          onfocus: () => this.pointed(side, [at]),
          onblur: () => this.pointed(null),
          onclick: () => this.pinned(side, at),
        },
        text,
      ),
    );
    this.lines[side].replaceChildren(...buttons);
  }

  /** Light words of one side, and on the other how much weight they share: {side, list, cell?}, or nothing. */
  light(chosen) {
    const { weights } = this.table;
    const buttons = { source: [...this.lines.source.children], target: [...this.lines.target.children] };
    /** @type {Record<string, (at: number) => number>} */
    const share = { source: () => 0, target: () => 0 };
    const own = chosen?.list?.filter((at) => at < buttons[chosen.side]?.length) ?? [];
    if (own.length && weights && chosen.side === "source")
      share.target = (r) => own.reduce((sum, c) => sum + weights[r][c], 0);
    if (own.length && weights && chosen.side === "target")
      share.source = (c) => own.reduce((sum, r) => sum + weights[r][c], 0) / own.length;
    for (const side of ["source", "target"]) {
      buttons[side].forEach((button, at) => {
        const mine = chosen?.side === side && own.includes(at);
        button.setAttribute("aria-pressed", String(mine));
        const part = Math.min(1, share[side](at));
        button.style.backgroundColor =
          !mine && part > 0.005 ? `color-mix(in srgb, var(--accent) ${Math.round(60 * part)}%, transparent)` : "";
        const other = chosen && !mine && own.length && chosen.side !== side;
        button.title = other ? number(part) : (button.dataset.copied ?? "");
      });
    }
    const [single, several] = chosen?.side === "source" ? ["column", "columns"] : ["row", "rows"];
    const lines = own.length === 1 ? { [single]: own[0] } : own.length ? { [several]: own } : null;
    this.alignment?.light(chosen?.cell ?? lines);
    this.shares = {
      source: buttons.source.map((_, at) => share.source(at)),
      target: buttons.target.map((_, at) => share.target(at)),
    };
  }

  /** The search at one step: what was written, what could come next, and what else was on the beam. */
  showSteps(step) {
    const { steps } = this.answer;
    this.steps.hidden = !steps?.length;
    if (!steps?.length) return;
    const at = Math.min(step ?? 0, steps.length - 1);
    const { prefix, alternatives, beam } = steps[at];
    if (this.scrubber?.most !== steps.length) {
      const field = slider(
        "Step",
        [1, steps.length, 1],
        at + 1,
        (x) => `${x} of ${steps.length}`,
        (x) => this.stepped(x - 1),
        "The search, token by token",
      );
      this.scrubber = { most: steps.length, field, body: el("div.step-body") };
      this.steps.replaceChildren(field, this.scrubber.body);
    }
    this.scrubber.field.show(at + 1);
    const most = Math.max(...alternatives.map((one) => Math.exp(one.logprob)));
    const chosen = this.answer.target[at];
    const rows = alternatives.map(({ piece, logprob }) =>
      shareCells(plain(piece), Math.exp(logprob), most, piece === chosen),
    );
    const next = el("table.next", el("caption", "next token"), el("tbody", ...rows));
    const others = el(
      "ol.beam",
      { "aria-label": "the beam" },
      ...(beam ?? []).map(({ text, score }) => el("li", el("span.figure", number(score)), " ", text || "…")),
    );
    const { generation } = this.answer;
    this.scrubber.body.replaceChildren(
      el("p.prefix", prefix || "…"),
      ...(generation ? [copySentence(generation[at])] : []),
      el("div.step-sides", next, others),
    );
  }

  close() {
    this.alignment?.close();
  }
}

// Where a decoder that copies (a pointer-generator, See et al. 2017) took its words from.
//
// p_gen is the probability that a word comes from the vocabulary; with 1 − p_gen it is a word of the source, chosen by the
// weights of attention.

const MOSTLY = 0.5;

/** How likely each label of the translation was to be copied: of a word the mean over its pieces; null without p_gen.
 *
 * @param {number[] | null | undefined} generation p_gen of each piece
 * @param {number[][]} groups the pieces of each label
 */
function copyShares(generation, groups) {
  if (!generation) return null;
  return groups.map((group) => group.reduce((sum, piece) => sum + 1 - generation[piece], 0) / group.length);
}

/** What is said of one word: "copied with probability 0.97". Empty where it comes from the vocabulary: where that is more
 * likely, or where the source does not have the word.
 */
export function copyNote({ copies, rows, columns }, row) {
  const share = copies?.[row] ?? 0;
  return share >= MOSTLY && columns.includes(rows[row]) ? `copied with probability ${share.toFixed(2)}` : "";
}

/** The sentence below a translation; null for a decoder that does not copy. */
export function copySummary(table) {
  if (!table.copies) return null;
  const copied = table.rows.flatMap((label, row) =>
    copyNote(table, row) ? [`“${label}” ${copyNote(table, row)}`] : [],
  );
  const text = copied.length
    ? `This model can copy words: ${copied.join(", ")}. The others come from its vocabulary.`
    : "This model can copy words; here every word comes from its vocabulary.";
  return el("p.copying", text);
}

/** The same of one piece, whichever way it was written. @param {number} generation p_gen */
function copySentence(generation) {
  const [written, copied] = [generation, 1 - generation].map((share) => share.toFixed(2));
  return el("p.quietly", `From the vocabulary with ${written} (p_gen), copied from the source with ${copied}.`);
}
