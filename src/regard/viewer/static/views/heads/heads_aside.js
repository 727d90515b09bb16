// Beside the picture of the Heads view: what the chosen token looks at, the strongest heads of all layers, and "what if".
import { layerTitle } from "../../data/calls.js";
import { answerLine } from "../../draw/answer_line.js";
import { el } from "../../draw/dom.js";
import { contributionLegend, contributionSummary } from "./heads_contributions.js";
import { difference, hints, legend, said, summary } from "./heads_sidebar.js";
import { StrongestHeads } from "./strongest_heads.js";
import { WhatIfPanel } from "./what_if_panel.js";

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
    this.ending = new AbortController();
  }

  /** The state changed. */
  update() {
    this.listed = null;
    this.strongest.show();
    this.whatIf.show();
  }

  /** What the heads do, by the server's definitions: said in words where no token is chosen. */
  async findPatterns() {
    const { context, trace, state } = this.view;
    const path = `/api/traces/${encodeURIComponent(trace.id)}/patterns`;
    try {
      const { heads } = await context.source.get(path, { entry: state.entry ?? 0 }, this.ending.signal);
      this.view.patterns = heads;
      this.listed = null;
      this.view.paint();
    } catch {
      // A file may hold none, and a long text takes too long: the page then says nothing about patterns.
    }
  }

  /** The words for what the panels drew; nothing where that is what is there already. */
  list() {
    const { view } = this;
    const { pins, mutes, level } = view;
    const panels = view.panels.filter((panel) => panel.last);
    const drawn = panels.map(({ call, active, rowsKey, last: { focus, links, waiting } }) => [
      ...[call.id, active, rowsKey, focus, links.length, waiting],
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
    const { signed } = panel.rows;
    if (!focus.length) return signed ? contributionLegend(panel, rows, links) : legend(panel, rows, links);
    const bring = (label) => this.view.bring(label);
    const [title, ...rest] = (signed ? contributionSummary : summary)(panel, focus, links, bring);
    return several ? [...(first ? [title] : []), el("h3.layer-name", {}, name), ...rest] : [title, ...rest];
  }

  showAnswer() {
    const chosen = this.view.panels[0].last?.focus.length;
    const [first] = chosen ? this.words.querySelectorAll(".finding, .barrow") : [];
    const [word, value] = [first?.querySelector(".barlabel")?.firstChild, first?.querySelector(".value")];
    this.answer.show(word && value ? `${word.textContent}: ${value.textContent}` : first?.textContent);
  }

  close() {
    this.ending.abort();
    this.strongest.close();
    this.whatIf.close();
  }
}
