// One model's translation: both sentences, the alignment between them, and how the search found it, step by step.
//
// POST /api/translate answers {translations: [{model, title, translation, source: pieces, source_words: the word of
// each, target, target_words, weights: [target][source] or null, the mean of `maps`, fidelity, steps: [{prefix,
// alternatives: [{piece, logprob}], beam: [{text, score}]}], generation: p_gen of each piece or null}]}; the last piece of
// either side ends the sentence.

import { plain, unknownNote } from "../../data/tokens.js";
import { Alignment } from "../../draw/alignment_matrix.js";
import { el, slider } from "../../draw/dom.js";
import { number } from "../../draw/numbers.js";
import { copyNote, copySentence, copyShares, copySummary } from "./copied_words.js";

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
    rowOf: (piece) => rows.findIndex((row) => row.includes(piece)),
  };
}

/** `pointed(side, list)`: words under the pointer, "source" or "target"; `pinned(side, index)`: one was clicked. */
export class TranslationCard {
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
      {},
      this.title,
      this.lines.source,
      this.lines.target,
      this.copying,
      el("div.matrix-and-steps", {}, this.stage, this.steps),
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
    this.title.replaceChildren(answer.title, el("span.quietly", {}, remark || " "));
    this.words("source", columns);
    this.words("target", rows);
    const summary = copySummary(this.table);
    const unknown = unknownNote([...columns, ...rows]);
    this.copying.replaceChildren(...(summary ? [summary] : []), ...(unknown ? [el("p.quietly", {}, unknown)] : []));
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
          type: "button",
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
    const rows = alternatives.map(({ piece, logprob }) => {
      const share = Math.exp(logprob);
      const fill = el("span.fill.weight");
      fill.style.width = `${(100 * share) / most}%`;
      return el(
        "tr",
        { class: piece === chosen ? "chosen" : null },
        el("td", {}, plain(piece)),
        el("td.number", {}, number(share)),
        el("td", {}, el("span.track", {}, fill)),
      );
    });
    const next = el("table.next", {}, el("caption", {}, "next token"), el("tbody", {}, ...rows));
    const others = el(
      "ol.beam",
      { "aria-label": "the beam" },
      ...(beam ?? []).map(({ text, score }) => el("li", {}, el("span.figure", {}, number(score)), " ", text || "…")),
    );
    const { generation } = this.answer;
    this.scrubber.body.replaceChildren(
      el("p.prefix", {}, prefix || "…"),
      ...(generation ? [copySentence(generation[at])] : []),
      el("div.step-sides", {}, next, others),
    );
  }

  close() {
    this.alignment?.close();
  }
}
