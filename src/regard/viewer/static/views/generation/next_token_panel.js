// What the model could have written at this step: the likeliest next tokens, at a temperature.
//
// POST /api/next answers {next: [{piece, share}]}.
import { plain } from "../../data/tokens.js";
import { el, slider } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";

const PAUSE = 200; // milliseconds after the last change of the slider

export class NextTokenPanel {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.temperature = 1;
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
      el("h3", {}, "It could have written"),
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
    this.running?.abort();
    const control = new AbortController();
    this.running = control;
    if (!this.next) this.body.replaceChildren(el("p.quietly", {}, "Computing …"));
    try {
      const body = { model: this.model, text: this.text, temperature: this.temperature };
      const { next } = await this.context.source.post("/api/next", body, control.signal);
      this.next = next;
      const rows = next.map(({ piece, share }) => {
        const fill = el("span.barfill");
        fill.style.width = `${100 * share}%`;
        const written = plain(piece) === this.chosen;
        return el(
          "div.barrow",
          {},
          fill,
          el("span.barlabel", {}, written ? el("strong", {}, `${plain(piece)} ✓`) : plain(piece)),
          el("span.value", {}, number(share)),
        );
      });
      this.body.replaceChildren(el("div.bars", {}, ...rows));
    } catch (error) {
      if (error.name !== "AbortError") this.body.replaceChildren(el("p.quietly", {}, error.message));
    }
  }

  close() {
    clearTimeout(this.waiting);
    this.running?.abort();
  }
}
