// The words beside the Heads view: what the chosen tokens look at, or what is drawn at all.
//
// `panel` is that of one layer.
import { latest } from "../data/sources.js";
import { isNumbered, layerTitle, plain, unknownNote } from "../data/tokens.js";
import { Links, Rows, STRONGEST } from "../data/weights.js";
import { barRow, choice, counted, el, number, signBar } from "../draw/elements.js";
import { surplus } from "./heads_links.js";

const LISTED = 8;
/** @type {Record<string, "query" | "key">} */
const ACROSS = { query: "key", key: "query" };

/** The tokens the focused ones are linked to, the strongest first; `bring(label)` when one is clicked. */
function summary(panel, focus, links, bring) {
  const { active, rows, view } = panel;
  const { side } = focus[focus.length - 1];
  const opposite = ACROSS[side];
  const chosen = new Set(focus.filter((one) => one.side === side).map(({ at }) => at));
  const [own, other] = [side, opposite].map((which) => view.sideOf({ side: which }).labels);
  const best = strongest(panel, side, chosen, links);
  const lines = best.map(({ at, weight, most, head }) =>
    bar(panel, {
      label: other[at],
      at,
      weight,
      share: Math.abs(weight / best[0].weight),
      head: chip(panel, head),
      most: active.length > 1 ? most : null,
      title: `token ${at}; most by head ${head}: ${number(most)}`,
      run: () => bring({ side: opposite, at }),
    }),
  );
  const names = [...chosen].map((at) => own[at]);
  const found = rows.signed
    ? []
    : [
        ...findings(panel, side, chosen, links).map((text) =>
          el(text.startsWith("Head") && text.includes("from every word") ? "p.finding.habit" : "p.finding", text),
        ),
        ...hiddenWeight(panel, side, chosen),
      ];
  const parts = [
    el("div.aside-title", el("h2", title(panel, side, names)), ...clearButton(panel)),
    ...found,
    el("p.quietly", measured(panel, side, chosen.size)),
    el("div.bars", ...lines),
    ...unknownWords(view),
  ];
  if (!links.length) parts.push(el("p.quietly", "No link is left: every head is off, or all it looks at is hidden."));
  return parts;
}

function title({ rows, view }, side, names) {
  const some = names.slice(0, 3);
  if (rows.signed)
    return `To ${view.answerChoice.name}, ${side === "query" ? "through" : "from"} ${some.map((name) => `“${name}”`).join(", ")}`;
  const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
  const verb = side === "key" ? "looked at by" : names.length > 1 ? "look at" : "looks at";
  return `“${some.join(" · ")}${more}” ${verb}`;
}

/** A line of a list; of a contribution in the colour of its sign. */
function bar({ rows, context: { palette } }, line) {
  const row = barRow(line);
  return rows.signed ? signBar(row, line.weight, palette) : row;
}

/** What the mark of an unknown word means, where the text has one. */
function unknownWords({ querySide, keySide }) {
  const note = unknownNote([...querySide.labels, ...keySide.labels]);
  return note ? [el("p.quietly", note)] : [];
}

/** Unpins everything; where nothing is pinned there is none. */
function clearButton(panel) {
  if (!panel.view.pins.length) return [];
  const attributes = { title: "Choose no token (Esc)", onclick: () => panel.view.unpin() };
  return [el("button.quiet.clear", attributes, "Clear")];
}

/** How much of the weight of the chosen queries is on tokens that are hidden, whose lines are not drawn. */
function hiddenWeight(panel, side, chosen) {
  if (side !== "query" || !panel.view.muted.size || !panel.active.length) return [];
  let sum = 0;
  for (const at of chosen)
    for (const head of panel.active) {
      const found = panel.links.from(head, at);
      if (!found) return [];
      found.weights.forEach((weight, j) => {
        if (panel.view.muted.has(found.keys[j])) sum += weight;
      });
    }
  const share = sum / (chosen.size * panel.active.length);
  const are = panel.view.muted.size > 1 ? "are" : "is";
  const words = `${share.toFixed(2)} of the weight is on ${hiddenNames(panel)}, which ${are} hidden.`;
  return [el("p", { "data-hidden": share }, words)];
}

/** The tokens that are hidden: "[CLS], [SEP]". */
export function hiddenNames(panel) {
  const names = [...new Set([...panel.view.muted].map((at) => panel.view.keySide.labels[at]))];
  return names.length > 3 ? `${panel.view.muted.size} tokens` : names.join(", ");
}

function strongest(panel, side, chosen, links) {
  return sums(panel, side, chosen, links)
    .sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight))
    .slice(0, LISTED);
}

/** Of several queries the mean, of several keys the sum: weights from a word are a mean, weights to it a sum. Contributions
 * add up.
 */
function sums(panel, side, chosen, links) {
  const known = new Map();
  const among = panel.rows.signed ? 1 : panel.active.length * (side === "query" ? chosen.size : 1);
  for (const link of links) {
    const [mine, theirs] = [link[side], link[ACROSS[side]]];
    if (!chosen.has(mine)) continue;
    const found = known.get(theirs) ?? { at: theirs, weight: 0, most: 0, head: 0 };
    found.weight += link.weight / among;
    if (Math.abs(link.weight) > Math.abs(found.most)) [found.most, found.head] = [link.weight, link.head];
    known.set(theirs, found);
  }
  return [...known.values()];
}

function chip({ context: { palette } }, head) {
  return { number: head, color: palette.head(head), ink: palette.overHead(head) };
}

/** The three links that stand out most as sentences, one for a head; then the strongest, where it is but a habit. */
function findings(panel, side, chosen, links) {
  const own = links.filter((link) => chosen.has(link[side]) && link.weight >= LEAST);
  const best = new Map();
  for (const link of own) if (surplus(link) > surplus(best.get(link.head) ?? NONE)) best.set(link.head, link);
  const special = [...best.values()].sort((a, b) => surplus(b) - surplus(a)).slice(0, 3);
  const most = own.reduce((one, next) => (next.weight > (one?.weight ?? 0) ? next : one), null);
  const habit = most ? habitOf(panel, most) : "";
  return [...special.filter((link) => link !== most || !habit).map((link) => sentenceOf(panel, link)), habit].filter(
    Boolean,
  );
}

const LEAST = 0.1; // a weight that is told
const NONE = { head: 0, query: 0, key: 0, weight: 0, habit: 0, alpha: 0 };

/** “Head 5.11 looks at “cat” from “it” (0.69; from any word here 0.61).” */
function sentenceOf(panel, { head, query, key, weight, habit }) {
  const [from, to] = [panel.view.querySide.labels[query], panel.view.keySide.labels[key]];
  const beside = habit == null ? "" : `; from any word here ${habit.toFixed(2)}`;
  return `Head ${headName(panel)(head)} looks from “${from}” at “${to}” (${weight.toFixed(2)}${beside}).`;
}

/** That a weight is mostly what its head does anyway; empty where it is not. */
function habitOf(panel, { head, query, key, weight, habit }) {
  if (habit == null || habit < weight / 2) return "";
  const [ofKey, ofDistance] = panel.links.habits().parts(head, query, key, weight);
  const [from, to] = [panel.view.querySide.labels[query], panel.view.keySide.labels[key]];
  const far = key - query;
  const place = far ? `${counted(Math.abs(far), "place")} ${far < 0 ? "back" : "on"}` : "at the word itself";
  const what = ofKey >= ofDistance ? `looks at “${to}” from every word` : `looks ${place} from every word`;
  const figures = `${weight.toFixed(2)}; from any word here ${habit.toFixed(2)}`;
  return `Head ${headName(panel)(head)} ${what} (${figures}); not because of “${from}”.`;
}

/** "5.11": layer and head, where layers have numbers. */
function headName(panel) {
  return (head) => (isNumbered(panel.trace) ? `${panel.call.layer}.${head}` : String(head));
}

function measured(panel, side, tokens) {
  const { active } = panel;
  if (panel.rows.signed) return `sum over ${counted(active.length, "head")}; + adds to the score, − takes from it`;
  const heads = active.length === 1 ? `weights of head ${active[0]}` : `mean over ${counted(active.length, "head")}`;
  if (side === "query") return tokens > 1 ? `${heads} and ${tokens} tokens` : heads;
  const long = panel.rows.dense ? "" : `, of the queries in view and their ${STRONGEST} strongest keys`;
  return `${heads}${tokens > 1 ? `, sum of ${tokens} tokens` : ""}${long}`;
}

/** What is drawn where nothing is focused. */
export function legend(panel) {
  const { call } = panel;
  const notes = [
    panel.view.muted.size &&
      `The lines from and to ${hiddenNames(panel)} are not drawn; the others are drawn as without hiding.`,
    !panel.rows.dense && `The text is long: of each query the ${STRONGEST} strongest keys are looked at.`,
    !panel.last?.waiting &&
      !panel.links.habits() &&
      "The text is too long for habits: lines are ranked by their weights.",
  ];
  return [
    el("h2", { title: call.name }, layerTitle(panel.trace, call)),
    el("p.quietly", `${call.kind}-attention, ${counted(call.heads, "head")}, ${call.queries} × ${call.keys}`),
    el("p", drawnWords(panel)),
    ...notes.filter(Boolean).map((words) => el("p", words)),
    ...unknownWords(panel.view),
  ];
}

function drawnWords({ last: { lines, links }, view }) {
  if (view.all) return `${links.length.toLocaleString("en")} links drawn.`;
  return `${counted(lines.length, "line")} of ${links.length.toLocaleString("en")}: those that differ most from what their head does from other words.`;
}

const HANDS =
  "Click a token to choose it; drag, or click with Shift or Control, for several. Point at a line or a square for its weight.";

/** One label and its strongest link, for a screen reader. */
export function said(panel, { side, at }, links) {
  const best = links
    .filter((link) => link[side] === at)
    .reduce((most, link) => (link.alpha > (most?.alpha ?? 0) ? link : most), null);
  const { labels } = panel.view.sideOf({ side });
  if (!best) return `${labels[at]}, ${at}`;
  const other = panel.view.sideOf({ side: ACROSS[side] }).labels[best[ACROSS[side]]];
  const looks = side === "query" ? "looks most at" : "is looked at most by";
  const verb = panel.rows.signed ? (side === "query" ? "gets most from" : "gives most to") : looks;
  return `${labels[at]}, ${at}: ${verb} ${other}, ${number(best.weight)}, head ${best.head}`;
}

const HEADS_LISTED = 5;
const LAYERS = 64; // asked at most
const SHORT = 1 << 22; // weights of all layers up to which all are asked for, and habits known

/** `view` is the Heads view: its context, trace, call, sides, pins and what is hidden. */
class StrongestHeads {
  constructor(view) {
    this.view = view;
    this.root = el("section.strongest", { "aria-label": "Strongest heads of all layers", hidden: true });
    /** @type {{call: Call, rows: Rows, links: Links}[]} */
    this.layers = [];
    /** What is listed. @type {{call: Call, head: number, at: number, weight: number, habit: number | null, surplus: number}[]} */
    this.best = [];
  }

  /** List the heads for the token that was chosen last. */
  show() {
    const { view } = this;
    const { querySide, keySide, call: own } = view;
    const entry = view.state.entry ?? 0;
    this.pin = view.pins.at(-1) ?? null;
    const calls = view.trace.calls.filter(
      (call) => call.query_side === own.query_side && call.key_side === own.key_side,
    );
    const possible = this.pin && calls.length > 1 && calls.length <= LAYERS && !view.rows.signed;
    const stamp = possible ? JSON.stringify([this.pin, view.level, view.mutes, entry, calls[0].id]) : "";
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.close();
    this.root.hidden = true;
    const short = calls.length * own.heads * own.queries * own.keys <= SHORT;
    const context = { ...view.context, fail() {} }; // a file may hold maps only: nothing is listed
    this.layers = (possible ? calls : []).map((call) => {
      const rows = new Rows(context, call, entry, () => this.list(), null, short ? 64 : 1);
      return { call, rows, links: new Links(rows, querySide, keySide) };
    });
    this.list();
  }

  /** Of each head the strongest link of the token, once all are here. */
  list() {
    const { view, pin } = this;
    const found = pin ? this.layers.flatMap(({ call, links }) => strongestLinks(view, call, links, pin)) : [];
    if (!pin || !found.length || found.includes(null)) return;
    this.best = /** @type {typeof this.best} */ (found).sort((a, b) => b.surplus - a.surplus).slice(0, HEADS_LISTED);
    const { labels } = view.sideOf({ side: ACROSS[pin.side] });
    const rows = this.best.map(({ call, head, at, weight, habit, surplus: over }) =>
      barRow({
        label: `${layerTitle(view.trace, call)} ${pin.side === "query" ? "→" : "←"} ${labels[at]}`,
        at,
        weight,
        share: over / (this.best[0].surplus || 1),
        head: chip(view, head),
        title: `${layerTitle(view.trace, call)}, head ${head}: open it alone${habit == null ? "" : `; from any word here ${habit.toFixed(2)}`}`,
        run: () => view.context.state.set({ call: call.id, head, heads: [head] }),
      }),
    );
    const title = `What stands out in all ${this.layers.length} layers`;
    this.root.replaceChildren(el("h3", title), el("div.bars", ...rows));
    view.aside.whatIf.show();
    this.root.hidden = false;
  }

  close() {
    for (const { rows } of this.layers) rows.close();
    this.layers = [];
    this.best = [];
  }
}

/** Of each head its link of largest surplus; null where it is on its way. What is hidden is left out. */
function strongestLinks({ muted, mutedQueries, querySide }, call, links, pin) {
  const habits = links.rows.size > 1 ? links.habits() : null; // one row at a time: of a long text not all are asked for
  const count = querySide.labels.length;
  const to = pin.side === "key" && links.rows.dense ? links.to(pin.at, []) : null;
  return Array.from({ length: call.heads }, (_, head) => {
    const from = pin.side === "query" ? links.from(head, pin.at) : null;
    if (!from && !to) return null;
    const places = from
      ? Array.from(from.keys, (at, n) => [at, from.weights[n]]).filter(([at]) => !muted.has(at))
      : querySide.labels.map((_, at) => [at, to[head * count + at]]).filter(([at]) => !mutedQueries.has(at));
    return places.reduce(
      (best, [at, weight]) => {
        const [i, j] = from ? [pin.at, at] : [at, pin.at];
        const habit = habits?.of(head, i, j, weight) ?? null;
        const over = weight - (habit ?? 0);
        return over > best.surplus ? { call, head, at, weight, habit, surplus: over } : best;
      },
      { call, head, at: 0, weight: 0, habit: null, surplus: 0 },
    );
  });
}

// "What if": silence a head or hide a word, run the model again, and see what it predicts and which heads changed.
//
// POST /api/what-if answers {before, after: [{piece, share | null}], heads: [{call, layer, head, change}], trace}.

const CHANGES_LISTED = 5;
const ELSEWHERE = () => [
  el("p", "a head is silenced, or a word is hidden? With regard on your computer, this page runs the model again:"),
  el("p", el("code", "regard view")),
];

/** A panel below the sidebar of the Heads view; `view` has context, trace, call, querySide, active and pins. */
class WhatIfPanel {
  constructor(view) {
    this.view = view;
    this.root = el("section.what-if", { "aria-label": "What if" });
    this.result = el("div", { role: "status" });
    this.request = latest();
  }

  /** Whether the model that read this trace can run again. */
  get possible() {
    const { trace, context } = this.view;
    if (!trace.made || trace.made.second || this.elsewhere) return false; // the request has one text
    return context.about.models.some((model) => model.name === trace.made.model);
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
      if (this.elsewhere) this.root.replaceChildren(el("h3", "What if …"), ...ELSEWHERE());
      return;
    }
    const { call, pins, querySide, active, trace } = this.view;
    const word = pins.find((pin) => pin.side === "query") ?? pins[0] ?? null;
    const own = trace.made.generate ? null : word; // of a text that was written, positions move
    const { labels, groups } = own ? this.view.sideOf(own) : querySide;
    const { best } = this.view.aside.strongest;
    const stamp = JSON.stringify([call.id, active, own, trace.id, best[0]?.call.id, best[0]?.head]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    // A head that something comes after: the one that stands out most for this word.
    const last = trace.calls.at(-1);
    const early = best.find((one) => one.call !== last);
    let [where, head] = active.length === 1 ? [call, active[0]] : early ? [early.call, early.head] : [call, 0];
    const heads = trace.calls.flatMap((one, at) =>
      Array.from({ length: one.heads }, (_, n) => [
        `${at} ${n}`,
        isNumbered(trace) ? `${one.layer}.${n}` : `${at}.${n}`,
      ]),
    );
    const picker = choice("head", heads, `${trace.calls.indexOf(where)} ${head}`, (name) => {
      const [at, n] = name.split(" ").map(Number);
      [where, head] = [trace.calls[at], n];
    });
    const hide = own && { hide: [groups[own.at][0]] };
    this.result.replaceChildren();
    this.root.replaceChildren(
      el("h3", "What if …"),
      el(
        "div.buttons",
        picker,
        el("button", { onclick: () => this.run({ silence: { [where.name]: [head] } }) }, "is silenced"),
      ),
      ...(own && call.query_side === call.key_side
        ? [el("div.buttons", el("button", { onclick: () => this.run(hide) }, `“${labels[own.at]}” is hidden`))]
        : []),
      this.result,
    );
  }

  async run(change) {
    const { trace, context } = this.view;
    this.result.replaceChildren(el("p.quietly", "Running the model twice …"));
    try {
      const body = { model: trace.made.model, text: trace.made.text, ...change };
      const answer = await this.request((signal) => context.source.post("/api/what-if", body, signal));
      if (answer) this.result.replaceChildren(...this.report(answer));
    } catch (error) {
      this.result.replaceChildren(el("p.problem", error.message));
    }
  }

  report({ before, after, heads, trace }) {
    const words = (list) =>
      list
        .slice(0, 3)
        .map(({ piece, share }) => `“${plain(piece)}”${share == null ? "" : ` ${number(share)}`}`)
        .join(", ");
    const rows = heads
      .slice(0, CHANGES_LISTED)
      .map(({ call, layer, head, change }) =>
        el(
          "li",
          el(
            "button.quiet",
            { onclick: () => this.view.context.state.set({ call, heads: [head] }) },
            `${layer == null ? "" : `${layer}.`}${head}`,
          ),
          ` moves ${number(change)} of its weight`,
        ),
      );
    return [
      ...(before.length
        ? [el("p", "Predicted before: ", el("strong", words(before))), el("p", "and now: ", el("strong", words(after)))]
        : []),
      ...(heads.length && heads.every(({ change }) => change === 0)
        ? [el("p", "No head's weights change: nothing that attends comes after this one.")]
        : [
            el("p", rows.length ? "The heads that changed most:" : "The runs cannot be compared head by head."),
            el("ol.changes", ...rows),
          ]),
      el("button", { onclick: () => this.view.context.open(trace) }, "Look at this run"),
    ];
  }

  close() {
    this.request.end();
  }
}

/** A square in the colour of a sign. */
function signSquare(palette, x) {
  const square = el("span", { "aria-hidden": "true" }, "■");
  square.style.color = palette.signed(x);
  return square;
}

/** What is drawn where nothing is focused: the totals of this layer's heads. */
function contributionLegend(panel, links) {
  const { call } = panel;
  const { answerChoice } = panel.view;
  const totals = answerChoice.ofCall(call)?.totals ?? [];
  const largest = Math.max(...totals.map(Math.abs), 1e-30);
  const { palette } = panel.context;
  const bars = panel.active.map((head) => {
    const [weight, share] = [totals[head], Math.abs(totals[head]) / largest];
    const run = () => panel.context.state.set({ heads: [head] });
    return bar(panel, { label: "head", at: head, weight, share, title: "all its contributions added up", run });
  });
  return [
    el("h2", `${layerTitle(panel.trace, call)} to ${answerChoice.name}`),
    el(
      "p",
      signSquare(palette, 0.7),
      " adds to its score, ",
      signSquare(palette, -0.7),
      " takes from it. A line is as strong as its contribution; the strongest of this layer is ",
      number(answerChoice.ofCall(call)?.peak ?? 0),
      ".",
    ),
    el("p.quietly", `${links.length.toLocaleString("en")} links drawn. All contributions of each head, added up:`),
    el("div.bars", ...bars),
    el("p.quietly", "Click a token to keep it chosen. Effects lists the heads of all layers."),
  ];
}

export class HeadsAside {
  /** `view` is the Heads view. */
  constructor(view) {
    this.view = view;
    this.words = el("div");
    this.sentence = "";
    this.strongest = new StrongestHeads(view);
    this.whatIf = new WhatIfPanel(view);
    this.root = el(
      "aside.aside",
      { "aria-label": "What the chosen token looks at" },
      this.words,
      this.strongest.root,
      this.whatIf.root,
    );
  }

  /** The state changed. */
  update() {
    this.listed = null;
    this.strongest.show();
    this.whatIf.show();
  }

  /** The words for what was drawn; nothing where that is what is there already. */
  list() {
    const { panel, pins, mutes, level, pointer, context, all } = this.view;
    if (!panel.last) return;
    const { focus, links, lines, rows, waiting } = panel.last;
    const key = JSON.stringify([
      pins,
      mutes,
      level,
      all,
      panel.active,
      panel.rows.key,
      focus,
      rows,
      links.length,
      waiting,
    ]);
    if (key === this.listed) return;
    this.listed = key;
    const own = lines.filter(({ weight, habit }) => habit == null || habit < weight / 2); // more than a habit
    const best = own.reduce((most, one) => (surplus(one) > surplus(most) ? one : most), NONE);
    this.words.replaceChildren(
      ...this.wordsOf(panel),
      ...(focus.length || panel.rows.signed ? [] : [el("p.quietly", HANDS)]),
    );
    const habit = this.words.querySelector(".habit")?.textContent;
    const words = panel.rows.signed || best === NONE ? "" : sentenceOf(panel, best);
    this.sentence = [words, habit].filter(Boolean).join(" ");
    // Map, Neuron and Model open on the head that was spoken of.
    if (words && !waiting && !pointer.hover && best.head !== this.view.state.head)
      context.state.set({ head: best.head });
    if (pointer.hover) context.announce(said(panel, pointer.hover, links));
  }

  wordsOf(panel) {
    const { focus, links, waiting } = panel.last;
    const name = layerTitle(panel.trace, panel.call);
    if (waiting && !links.length)
      return [el("p.quietly", { role: "status" }, `Reading ${name.replace(/^Layer/, "layer")} …`)];
    if (!focus.length) return panel.rows.signed ? contributionLegend(panel, links) : legend(panel);
    return summary(panel, focus, links, (label) => this.view.bring(label));
  }

  /** What a line or a square says that is pointed at. */
  read(link) {
    const { panel } = this.view;
    if (panel.rows.signed) return `Head ${headName(panel)(link.head)}: ${number(link.weight)}`;
    return (link.weight >= LEAST && habitOf(panel, link)) || sentenceOf(panel, link);
  }

  close() {
    this.strongest.close();
    this.whatIf.close();
  }
}
