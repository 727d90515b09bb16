// Read: a text named by classifiers, each word shaded by the weight it got: learned weights, and TF-IDF's beside them.

import { latest } from "../data/sources.js";
import { plain } from "../data/tokens.js";
import { inks, onPaper, sheet, write } from "../draw/canvas.js";
import { el, number, shareRow, tick } from "../draw/elements.js";
import { drawFlow, shade } from "../draw/weight_pictures.js";

const EXAMPLE = "The soup was not bad, but I would not call the waiter friendly.";
const KINDS = [
  ["weights", "Learned: where it looked"],
  ["static", "TF-IDF: how rare the words are"],
];

const NONE =
  "No classifier of texts is here. Train one in a minute: regard train lstm-attention-opinions; " +
  "then open what it wrote: regard view runs/lstm-attention-opinions-1";

/** @type {View} */
export const read = {
  name: "read",
  title: "Classify",
  hint: "A text, the label a classifier gives it, and the weight of every word",
  needs: "classify",
  without: NONE,
  mount: (root, context) => new Read(root, context),
};

class Read {
  constructor(root, context) {
    this.context = context;
    this.results = [];
    this.asked = null;
    this.request = latest();
    this.models = context.about.models.filter((model) => model.task === "classify");
    const { state } = this.context;
    this.input = el("textarea", {
      rows: 3,
      "aria-label": "Text",
      placeholder: "A sentence to classify",
      maxlength: this.context.about.limits.text,
    });
    this.ticks = this.models.map((model) => [
      model,
      tick(model.title ?? model.name, true, (on) => this.choose(model.name, on)),
    ]);
    this.status = el("p.status", { role: "status" });
    const form = el(
      "form.naming",
      {
        onsubmit: (event) => {
          event.preventDefault();
          state.set({ text: this.input.value.trim() || null });
        },
      },
      this.input,
      el(
        "div.controls.inline",
        el("button.primary", { type: "submit" }, "Classify"),
        ...this.ticks.map(([, field]) => field),
      ),
    );
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.cards = el("div.cards");
    root.append(el("div.drawing.plain", form, this.status, this.cards));
    this.update(context.state.get());
  }

  chosen() {
    return this.context.state.get().models ?? this.models.map((model) => model.name);
  }

  choose(name, on) {
    const now = this.chosen().filter((one) => one !== name);
    const next = this.models.map((model) => model.name).filter((one) => now.includes(one) || (on && one === name));
    this.context.state.set({ models: next.length === this.models.length ? null : next });
  }

  update(state) {
    const models = this.chosen();
    this.ticks.forEach(([model, field]) => field.show(models.includes(model.name)));
    if (document.activeElement !== this.input || !this.input.value) this.input.value = state.text ?? EXAMPLE;
    const asked = JSON.stringify([state.text ?? EXAMPLE, models]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.ask(state.text ?? EXAMPLE, models);
    } else this.show();
  }

  async ask(text, models) {
    this.request.end();
    this.results = [];
    this.show();
    this.status.textContent = models.length ? "Classifying …" : "Choose a model.";
    if (!models.length) return;
    const { source } = this.context;
    try {
      const found = await this.request((signal) => source.post("/api/classify", { text, models }, signal));
      if (!found) return;
      this.results = found.classifications.map(byWord);
      this.status.textContent = "";
      this.show();
      this.context.announce(this.results.map((one) => `${one.title}: ${one.label}`).join(". "));
    } catch (error) {
      this.status.textContent = error.message;
    }
  }

  show() {
    this.cards.replaceChildren(...this.results.map((result) => this.card(result)));
  }

  card(result) {
    const bars = Object.entries(result.probabilities).map(([label, share]) => shareRow(label, share));
    const texts = KINDS.filter(([kind]) => result[kind]).flatMap(([kind, title]) => {
      const amounts = shades(result[kind]);
      const spans = result.words.map((word, at) => {
        const span = el("span.token", { title: number(result[kind][at]) }, word);
        shade(span, amounts[at], this.context.palette);
        return span;
      });
      return [el("h3.quietly", title), el("div.tokens", { "data-kind": kind }, ...spans), scale(result[kind])];
    });
    const none = result.weights ? [] : [el("p.quietly", "This model gives no word a weight of its own.")];
    return el(
      "section.card",
      { "aria-label": result.title },
      el("h2", el("span.quietly", `${result.title}: `), result.label),
      el("div.bars", ...bars),
      ...none,
      ...texts,
    );
  }

  // Export and tests

  picture() {
    if (!this.results.length) return null;
    const [width, colors, { palette }] = [760, inks(this.cards), this.context];
    const left = { textAlign: "left", textBaseline: "middle" };
    const draw = (pen) => {
      let y = 16;
      for (const result of this.results) {
        const title = `${result.title}: ${result.label} ${number(result.probabilities[result.label])}`;
        write(pen, title, 16, y + 10, { ...left, font: `600 16px ${colors.font}`, fillStyle: colors.ink });
        y += 30;
        for (const [kind, name] of KINDS.filter(([kind]) => result[kind])) {
          write(pen, name, 16, y + 8, { font: `12px ${colors.font}`, fillStyle: colors.soft });
          const amounts = shades(result[kind]);
          const items = result.words.map((word, at) => ({ label: word, shade: amounts[at] }));
          y = drawFlow(pen, items, 16, y + 20, width - 32, palette, colors);
        }
        y += 14;
      }
      return y;
    };
    return onPaper(width, draw(sheet(1, 1)), colors.paper, draw);
  }

  legend() {
    return { to: "largest", words: "share of the largest weight" };
  }

  table() {
    const rows = this.results.flatMap((one) =>
      one.words.map((word, at) => [one.title, one.label, at, word, one.weights?.[at], one.static?.[at]]),
    );
    return [["model", "label", "place", "word", "learned", "TF-IDF"], ...rows];
  }

  drawn() {
    return {
      results: this.results,
      shades: this.results.map((one) => KINDS.map(([kind]) => one[kind] && shades(one[kind]))),
    };
  }

  destroy() {
    this.request.end();
  }
}

/** Pieces joined to the words they are of, which get the sum of their weights. */
function byWord(result) {
  const words = [];
  result.words.forEach((piece, at) => {
    if (at === 0 || /^[▁Ġ<]/.test(piece) || result.words[at - 1].startsWith("<"))
      words.push({ text: "", weights: 0, static: 0 });
    const word = words[words.length - 1];
    word.text += piece;
    for (const [kind] of KINDS) word[kind] += result[kind]?.[at] ?? 0;
  });
  const sums = Object.fromEntries(KINDS.map(([kind]) => [kind, result[kind] && words.map((word) => word[kind])]));
  return { ...result, ...sums, words: words.map((word) => plain(word.text)) };
}

/** Weights as shares of the largest: a text's words are compared with one another. */
function shades(weights) {
  const most = weights.reduce((a, b) => Math.max(a, b), 0);
  return weights.map((weight) => (most ? weight / most : 0));
}

function scale(weights) {
  return el("p.quietly.small", `Colours from 0 to ${number(weights.reduce((a, b) => Math.max(a, b), 0))}.`);
}
