// Below the words of the Heads view: the heads of all layers that look hardest from the chosen token, or at it.
import { callPath, layerTitle } from "../../data/calls.js";
import { gather } from "../../data/tokens.js";
import { el } from "../../draw/dom.js";
import { barRow } from "../../draw/weight_bars.js";

const LISTED = 5;
const LAYERS = 64; // asked at most
const WHOLE = 2048; // queries up to which what all of them give to one key is asked

/** `view` is the Heads view: its context, trace, call, sides, pins and what is hidden. */
export class StrongestHeads {
  constructor(view) {
    this.view = view;
    this.root = el("section.strongest", { "aria-label": "Strongest heads of all layers", hidden: true });
    this.asking = new AbortController();
    /** What is listed, for tests. @type {{call: Call, head: number, at: number, weight: number}[]} */
    this.best = [];
  }

  /** List the heads for the token that was chosen last. */
  show() {
    const { view } = this;
    const pin = view.pins.at(-1) ?? null;
    const calls = view.trace.calls.filter(
      (call) => call.query_side === view.call.query_side && call.key_side === view.call.key_side,
    );
    const possible = pin && calls.length > 1 && calls.length <= LAYERS && !view.rows.signed;
    const stamp = possible ? JSON.stringify([pin, view.level, view.mutes, view.state.entry, calls[0].id]) : "";
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.asking.abort();
    this.asking = new AbortController();
    this.best = [];
    this.root.hidden = true;
    if (possible && (pin.side === "query" || view.call.queries <= WHOLE))
      this.load(calls, pin, this.asking.signal).catch(() => {}); // a file may hold maps only: nothing is listed
  }

  async load(calls, pin, signal) {
    const { view } = this;
    const { querySide, keySide, muted, mutedQueries } = view;
    const group = view.sideOf(pin).groups[pin.at];
    const span = `${group[0]}:${group[group.length - 1] + 1}`;
    const part = pin.side === "query" ? { rows: span } : { cols: span };
    const params = { entry: view.state.entry ?? 0, ...part, type: "float16" };
    const answers = await Promise.all(
      calls.map((call) => view.context.source.array(`${callPath(view.trace, call)}/weights`, params, signal)),
    );
    if (signal.aborted) return;
    const [others, hidden] = pin.side === "query" ? [keySide.groups, muted] : [querySide.groups, mutedQueries];
    const found = answers.flatMap(({ data, shape: [heads, rows, columns] }, at) =>
      Array.from({ length: heads }, (_, head) => {
        const matrix = data.subarray(head * rows * columns, (head + 1) * rows * columns);
        const weights = pin.side === "query" ? rowMean(matrix, columns, others) : columnSums(matrix, columns, others);
        return { call: calls[at], head, ...largest(weights, hidden) };
      }),
    );
    this.best = found.sort((a, b) => b.weight - a.weight).slice(0, LISTED);
    const labels = (pin.side === "query" ? keySide : querySide).labels;
    const { palette, state } = view.context;
    this.root.replaceChildren(
      el("h3", {}, `Strongest heads of all ${calls.length} layers`),
      el(
        "div.bars",
        {},
        ...this.best.map(({ call, head, at, weight }) =>
          barRow({
            label: `${layerTitle(view.trace, call)} ${pin.side === "query" ? "→" : "←"} ${labels[at]}`,
            at,
            weight,
            share: weight / (this.best[0].weight || 1),
            head: { number: head, color: palette.head(head), ink: palette.overHead(head) },
            title: `${layerTitle(view.trace, call)}, head ${head}: open it alone`,
            run: () => state.set({ call: call.id, head, heads: [head] }),
          }),
        ),
      ),
    );
    this.root.hidden = false;
  }

  close() {
    this.asking.abort();
  }
}

/** [queries of one group × keys] → the mean over the queries, by labels of the keys. */
function rowMean(matrix, columns, groups) {
  const rows = Array.from({ length: matrix.length / columns }, (_, i) =>
    matrix.subarray(i * columns, (i + 1) * columns),
  );
  return gather(rows, groups);
}

/** [queries × keys of one group] → the sum over the keys, by labels of the queries: of each the mean. */
function columnSums(matrix, columns, groups) {
  return Float32Array.from(groups, (rows) => {
    let sum = 0;
    for (const i of rows) for (let j = 0; j < columns; j++) sum += matrix[i * columns + j];
    return sum / rows.length;
  });
}

function largest(weights, hidden) {
  let best = { at: 0, weight: 0 };
  weights.forEach((weight, at) => {
    if (weight > best.weight && !hidden.has(at)) best = { at, weight };
  });
  return best;
}
