// The controls of the Map view: layer and head of each map, pooling, colours, search and comparison.
import { callChoice } from "../../draw/call_choice.js";
import { SHADES } from "../../draw/color_scale.js";
import { choice, el, segments, tick } from "../../draw/dom.js";

const POOLINGS = [
  ["max", "Largest", "a cell shows the largest of its weights"],
  ["mean", "Mean", "a cell shows the mean of its weights"],
];

export class MapControls {
  /** `view` is the Map view. */
  constructor(view) {
    this.view = view;
    this.root = el("div.controls");
    this.finder = el("input.map-find", {
      type: "search",
      placeholder: "Find a word …",
      "aria-label": "Find a word",
      onkeydown: (event) => event.key === "Enter" && view.search.find(this.finder.value),
    });
  }

  show() {
    const { view } = this;
    const { pool, shade, other } = view.settings;
    const { call, head } = view.context.state.get();
    const stamp = JSON.stringify([pool, shade, other, call, head, view.panels.length]);
    if (stamp === this.stamp) return; // made anew only where something changed: one of them may be in use
    this.stamp = stamp;
    const all = () => /** @type {any[]} */ ([...this.root.querySelectorAll("select, button, input")]);
    const held = all().indexOf(document.activeElement);
    const set = (name) => (value) => view.set({ [name]: value });
    this.root.replaceChildren(
      ...this.choosers(0),
      labelled("Cells show the", segments("Pooling", POOLINGS, pool, set("pool"))),
      labelled("Colour scale", segments("Shade", Object.entries(SHADES), shade, set("shade"))),
      el("button", { type: "button", onclick: () => view.camera.showAll() }, "Show all"),
      this.finder,
      tick("Compare", Boolean(other), (on) => view.compare(on), "a second head or model, moved in step (c)"),
      ...(other ? [el("span.map-with", {}, el("span.joining", {}, "with"), ...this.choosers(1))] : []),
    );
    all()[held]?.focus();
  }

  /** Which layer and head the first or the second map shows; of the second also which trace. */
  choosers(at) {
    const { view } = this;
    const target = view.target(at);
    const set = (patch) =>
      at === 0 ? view.context.state.set(patch) : view.set({ other: { ...view.settings.other, ...patch } });
    const traces = view.context.about.traces.map((trace) => [trace.id, trace.title]);
    const which =
      at === 1 && traces.length > 1
        ? [
            choice("Trace", traces, view.settings.other.trace ?? view.context.trace.id, (id) =>
              set({ trace: id, call: null, head: 0 }),
            ),
          ]
        : [];
    if (!target) return which;
    const heads = Array.from({ length: target.call.heads }, (_, i) => [i, String(i)]);
    return [
      ...which,
      callChoice(target.trace, target.call, (id) => set({ call: id })),
      choice("Head", heads, target.head, (head) => set({ head: Number(head) })),
    ];
  }
}

/** Buttons with words before them. */
function labelled(words, buttons) {
  return el("span.field", {}, el("span", {}, words), buttons);
}
