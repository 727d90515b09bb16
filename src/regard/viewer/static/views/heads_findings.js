// The words beside the Heads view: what the chosen tokens look at, or what is drawn at all.
//
// `panel` is that of one layer.
import { latest } from "../data/sources.js";
import { isNumbered, layerTitle, plain, unknownNote } from "../data/tokens.js";
import { Links, Rows, STRONGEST } from "../data/weights.js";
import { answerLine, barRow, counted, el, headChoice, number, signBar } from "../draw/elements.js";

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
        ...marked(panel, side, chosen),
        ...findings(panel, side, chosen, links).map((text) => el("p.finding", text)),
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

/** How much of all weight lies on several chosen keys, such as a sentence: the mean over queries and heads that are on. */
function marked(panel, side, chosen) {
  if (side !== "key" || chosen.size < 2 || !panel.rows.dense || !panel.active.length) return [];
  const count = panel.view.querySide.labels.length;
  let sum = 0;
  for (const at of chosen) {
    const weights = panel.links.to(at, []);
    if (!weights) return [];
    for (const head of panel.active) for (let query = 0; query < count; query++) sum += weights[head * count + query];
  }
  const share = sum / (count * panel.active.length);
  return [
    el("p.finding", { "data-share": share }, `These ${chosen.size} tokens get ${share.toFixed(3)} of all weight.`),
  ];
}

/** The clearest links as sentences: of each head its strongest, the three heads with the strongest ones. */
function findings(panel, side, chosen, links) {
  const best = new Map();
  for (const link of links) {
    if (!chosen.has(link[side]) || link.weight <= (best.get(link.head)?.weight ?? 0)) continue;
    best.set(link.head, link);
  }
  const label = (link) => panel.view.sideOf({ side: ACROSS[side] }).labels[link[ACROSS[side]]];
  const name = headName(panel);
  return [...best.values()]
    .sort((a, b) => b.weight - a.weight)
    .slice(0, 3)
    .filter(({ weight }) => weight >= 0.1)
    .map((link) =>
      side === "query"
        ? `Head ${name(link.head)} looks at “${label(link)}” (${link.weight.toFixed(2)} of its weight).`
        : `Head ${name(link.head)}: “${label(link)}” looks here with ${link.weight.toFixed(2)} of its weight.`,
    );
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

/** What is drawn where nothing is focused: how many links of these queries, and how much of their weight. */
export function legend(panel, queries, links) {
  const { call } = panel;
  let all = 0;
  for (const query of queries)
    for (const head of panel.active) {
      const found = panel.links.from(head, query);
      if (found) all += panel.links.total(found);
    }
  const held = links.reduce((sum, link) => sum + link.weight, 0);
  const share = all ? ` They hold ${Math.round((100 * held) / all)} % of the weight of the queries in view.` : "";
  const notes = [
    panel.view.muted.size &&
      `The lines from and to ${hiddenNames(panel)} are not drawn; the others are drawn as without hiding.`,
    !panel.rows.dense && `The text is long: of each query the ${STRONGEST} strongest keys are looked at.`,
  ];
  return [
    el("h2", { title: call.name }, layerTitle(panel.trace, call)),
    el("p.quietly", `${call.kind}-attention, ${counted(call.heads, "head")}, ${call.queries} × ${call.keys}`),
    el("p", `${links.length.toLocaleString("en")} links drawn.${share}`),
    ...notes.filter(Boolean).map((words) => el("p", words)),
    ...unknownWords(panel.view),
  ];
}

/** How lines are drawn, and how tokens are chosen. */
function hints() {
  const faint = "A line is as strong as its weight, paler where many heads are on; what is too faint is not drawn.";
  const hands =
    "Click a token to choose it; drag, or click with Shift or Control, for several. Shift and the wheel move the right column.";
  return [el("p.quietly", faint), el("p.quietly", hands)];
}

/** Of two layers side by side: the token whose weight differs most between them. @param {any[]} panels */
export function difference(panels) {
  const focus = panels[0].last.focus;
  if (!focus.length || panels.some((panel) => panel.rows.signed || panel.last.waiting || !panel.active.length))
    return [];
  const { side } = focus[focus.length - 1];
  const chosen = new Set(focus.filter((one) => one.side === side).map(({ at }) => at));
  const weights = panels.map(
    (panel) => new Map(sums(panel, side, chosen, panel.last.links).map((x) => [x.at, x.weight])),
  );
  const of = (at) => weights.map((layer) => layer.get(at) ?? 0);
  const gap = (at) => Math.abs(of(at)[0] - of(at)[1]);
  const all = [...new Set(weights.flatMap((layer) => [...layer.keys()]))];
  if (!all.length) return [];
  const most = all.reduce((best, at) => (gap(at) > gap(best) ? at : best));
  const label = panels[0].view.sideOf({ side: ACROSS[side] }).labels[most];
  const name = ({ trace, call }) => layerTitle(trace, call).replace(/^Layer /, "layer\u00a0");
  const shares = panels.map((panel, at) => `${number(of(most)[at])} in ${name(panel)}`);
  const text = `The largest difference: “${label}” ${side === "query" ? "gets" : "gives"} ${shares.join(" and ")}.`;
  return [el("p.finding.difference", { "data-at": most }, text)];
}

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

/** `view` is the Heads view: its context, trace, call, sides, pins and what is hidden. */
class StrongestHeads {
  constructor(view) {
    this.view = view;
    this.root = el("section.strongest", { "aria-label": "Strongest heads of all layers", hidden: true });
    /** @type {{call: Call, rows: Rows, links: Links}[]} */
    this.layers = [];
    /** What is listed, for tests. @type {{call: Call, head: number, at: number, weight: number}[]} */
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
    const context = { ...view.context, fail() {} }; // a file may hold maps only: nothing is listed
    this.layers = (possible ? calls : []).map((call) => {
      const rows = new Rows(context, call, entry, () => this.list(), null, 1);
      return { call, rows, links: new Links(rows, querySide, keySide) };
    });
    this.list();
  }

  /** Of each head the strongest link of the token, once all are here. */
  list() {
    const { view, pin } = this;
    const found = pin ? this.layers.flatMap(({ call, links }) => strongestLinks(view, call, links, pin)) : [];
    if (!pin || !found.length || found.includes(null)) return;
    this.best = /** @type {typeof this.best} */ (found).sort((a, b) => b.weight - a.weight).slice(0, HEADS_LISTED);
    const { labels } = view.sideOf({ side: ACROSS[pin.side] });
    const rows = this.best.map(({ call, head, at, weight }) =>
      barRow({
        label: `${layerTitle(view.trace, call)} ${pin.side === "query" ? "→" : "←"} ${labels[at]}`,
        at,
        weight,
        share: weight / (this.best[0].weight || 1),
        head: chip(view, head),
        title: `${layerTitle(view.trace, call)}, head ${head}: open it alone`,
        run: () => view.context.state.set({ call: call.id, head, heads: [head] }),
      }),
    );
    this.root.replaceChildren(el("h3", `Strongest heads of all ${this.layers.length} layers`), el("div.bars", ...rows));
    this.root.hidden = false;
  }

  close() {
    for (const { rows } of this.layers) rows.close();
    this.layers = [];
    this.best = [];
  }
}

/** [{call, head, at, weight}], null where it is on its way; what is hidden is left out. */
function strongestLinks({ muted, mutedQueries, querySide }, call, links, pin) {
  const all = Array.from({ length: call.heads }, (_, head) => head);
  if (pin.side === "query")
    return all.map((head) => {
      const found = links.from(head, pin.at);
      const at = found?.keys.findIndex((key) => !muted.has(key)) ?? -1;
      return found && { call, head, at: found.keys[at] ?? 0, weight: found.weights[at] ?? 0 };
    });
  const weights = links.rows.dense ? links.to(pin.at, []) : null;
  const count = querySide.labels.length;
  return all.map((head) => {
    const own = weights?.subarray(head * count, (head + 1) * count).map((x, at) => (mutedQueries.has(at) ? 0 : x));
    const weight = own && Math.max(...own);
    return own ? { call, head, at: own.indexOf(weight), weight } : null;
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
    this.head = 0;
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
    const stamp = JSON.stringify([call.id, active, own, trace.id]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.head = active.length === 1 ? active[0] : Math.min(this.head, call.heads - 1);
    const hide = own && { hide: [groups[own.at][0]] };
    this.result.replaceChildren();
    this.root.replaceChildren(
      el("h3", "What if …"),
      el(
        "div.buttons",
        headChoice(call.heads, this.head, (value) => (this.head = value)),
        el("button", { onclick: () => this.run({ silence: { [call.name]: [this.head] } }) }, "is silenced"),
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
function contributionLegend(panel, _queries, links) {
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
    this.strongest = new StrongestHeads(view);
    this.whatIf = new WhatIfPanel(view);
    this.root = el(
      "aside.aside",
      { "aria-label": "What the chosen token looks at" },
      this.words,
      this.strongest.root,
      this.whatIf.root,
    );
    this.answer = answerLine(this.root);
  }

  /** The state changed. */
  update() {
    this.listed = null;
    this.strongest.show();
    this.whatIf.show();
  }

  /** The words for what the panels drew; nothing where that is what is there already. */
  list() {
    const { view } = this;
    const { pins, mutes, level } = view;
    const panels = view.panels.filter((panel) => panel.last);
    const drawn = panels.map(({ active, rows, last: { focus, links, waiting } }) => [
      ...[active, rows.key, focus, links.length, waiting],
    ]);
    const key = JSON.stringify([pins, mutes, level, view.panels.length, drawn]);
    if (!panels.length || key === this.listed) return;
    this.listed = key;
    const several = view.panels.length > 1;
    const [title, ...rest] = panels.flatMap((panel, at) => this.wordsOf(panel, several, at === 0));
    this.words.replaceChildren(
      title,
      ...(panels.length > 1 ? difference(panels) : []),
      ...rest,
      ...(panels[0].last?.focus.length || panels[0].rows.signed ? [] : hints()),
    );
    this.showAnswer();
    const { hover } = view.pointer;
    const [first] = panels;
    if (hover && first.last) view.context.announce(said(first, hover, first.last.links));
  }

  /** Of one layer; beside another one its name comes first, and what is chosen is said once. */
  wordsOf(panel, several, first) {
    const { focus, links, rows, waiting } = panel.last;
    const name = layerTitle(panel.trace, panel.call);
    if (waiting && !links.length)
      return [el("p.quietly", { role: "status" }, `Reading ${name.replace(/^Layer/, "layer")} …`)];
    if (!focus.length) return (panel.rows.signed ? contributionLegend : legend)(panel, rows, links);
    const [title, ...rest] = summary(panel, focus, links, (label) => this.view.bring(label));
    return several ? [...(first ? [title] : []), el("h3.layer-name", name), ...rest] : [title, ...rest];
  }

  showAnswer() {
    const chosen = this.view.panels[0].last?.focus.length;
    const [first] = chosen ? this.words.querySelectorAll(".finding, .barrow") : [];
    const [word, value] = [first?.querySelector(".barlabel")?.firstChild, first?.querySelector(".value")];
    this.answer.show(word && value ? `${word.textContent}: ${value.textContent}` : first?.textContent);
  }

  close() {
    this.strongest.close();
    this.whatIf.close();
  }
}
