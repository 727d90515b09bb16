// "What if": silence a head or hide a word, run the model again, and see what it predicts and which heads changed.
//
// POST /api/what-if answers {before, after: [{piece, share | null}], heads: [{call, layer, head, change}], trace}.
import { plain } from "../../data/tokens.js";
import { choice, el } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";

const LISTED = 5;
const ELSEWHERE = () => [
  el("p", {}, "a head is silenced, or a word is hidden? With regard on your computer, this page runs the model again:"),
  el("p", {}, el("code", {}, "regard view")),
];

/** A panel below the sidebar of the Heads view; `view` has context, trace, call, querySide, active and pins. */
export class WhatIfPanel {
  constructor(view) {
    this.view = view;
    this.root = el("section.what-if", { "aria-label": "What if" });
    this.head = 0;
    this.result = el("div", { role: "status" });
    this.running = null;
  }

  /** Whether the model that read this trace can run again. */
  get possible() {
    const { trace, context } = this.view;
    if (trace.made?.second) return false; // the request has one text
    if (this.elsewhere) return false;
    return Boolean(trace.made && context.about.models.some((model) => model.name === trace.made.model));
  }

  /** Whether it takes an installation: a page without a server runs no model with heads silenced. */
  get elsewhere() {
    const { trace, context } = this.view;
    return Boolean(trace.made && context.source.runs?.("/api/what-if") === false);
  }

  /** The controls: a head, and the word that is chosen. */
  show() {
    this.root.hidden = !this.possible && !this.elsewhere;
    if (!this.possible) {
      if (this.elsewhere) this.root.replaceChildren(el("h3", {}, "What if …"), ...ELSEWHERE());
      return;
    }
    const { call, pins, querySide, active, trace } = this.view;
    const word = pins.find((pin) => pin.side === "query") ?? pins[0] ?? null;
    const own = trace.made.generate ? null : word; // of a text that was written, positions move
    const label = own && (own.side === "query" ? querySide : this.view.keySide).labels[own.at];
    const stamp = JSON.stringify([call.id, active, own, trace.id]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.head = active.length === 1 ? active[0] : Math.min(this.head, call.heads - 1);
    const heads = Array.from({ length: call.heads }, (_, i) => [i, String(i)]);
    const position = own && (own.side === "query" ? querySide : this.view.keySide).groups[own.at][0];
    this.result.replaceChildren();
    this.root.replaceChildren(
      el("h3", {}, "What if …"),
      el(
        "div.buttons",
        {},
        choice("head", heads, this.head, (value) => (this.head = Number(value))),
        el(
          "button",
          { type: "button", onclick: () => this.run({ silence: { [call.name]: [this.head] } }) },
          "is silenced",
        ),
      ),
      ...(own && call.query_side === call.key_side
        ? [
            el(
              "div.buttons",
              {},
              el("button", { type: "button", onclick: () => this.run({ hide: [position] }) }, `“${label}” is hidden`),
            ),
          ]
        : []),
      this.result,
    );
  }

  async run(change) {
    this.running?.abort();
    const control = new AbortController();
    this.running = control;
    const { trace, context } = this.view;
    this.result.replaceChildren(el("p.quietly", {}, "Running the model twice …"));
    try {
      const body = { model: trace.made.model, text: trace.made.text, ...change };
      const answer = await context.source.post("/api/what-if", body, control.signal);
      this.result.replaceChildren(...this.report(answer));
      this.answer = answer;
    } catch (error) {
      if (error.name !== "AbortError") this.result.replaceChildren(el("p.problem", {}, error.message));
    }
  }

  report({ before, after, heads, trace }) {
    const words = (list) =>
      list
        .slice(0, 3)
        .map(({ piece, share }) => `“${plain(piece)}”${share == null ? "" : ` ${number(share)}`}`)
        .join(", ");
    const rows = heads
      .slice(0, LISTED)
      .map(({ call, layer, head, change }) =>
        el(
          "li",
          {},
          el(
            "button.quiet",
            { type: "button", onclick: () => this.view.context.state.set({ call, heads: [head] }) },
            `${layer == null ? "" : `${layer}.`}${head}`,
          ),
          ` moves ${number(change)} of its weight`,
        ),
      );
    return [
      ...(before.length
        ? [
            el("p", {}, "Predicted before: ", el("strong", {}, words(before))),
            el("p", {}, "and now: ", el("strong", {}, words(after))),
          ]
        : []),
      ...(heads.length && heads.every(({ change }) => change === 0)
        ? [el("p", {}, "No head's weights change: nothing that attends comes after this one.")]
        : [
            el("p", {}, rows.length ? "The heads that changed most:" : "The runs cannot be compared head by head."),
            el("ol.changes", {}, ...rows),
          ]),
      el("button", { type: "button", onclick: () => this.view.context.open(trace) }, "Look at this run"),
    ];
  }

  close() {
    this.running?.abort();
  }
}
