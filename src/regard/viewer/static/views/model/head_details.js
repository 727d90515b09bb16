// The sidebar of the Model view: the chosen head as a large map, with its statistics and patterns.

import { callPath } from "../../data/calls.js";
import { LARGE_MAP_SIDE } from "../../data/constants.js";
import { patternMeaning, patternSentence, STATISTIC_MEANINGS } from "../../data/pattern_sentences.js";
import { AGAIN } from "../../data/tiles.js";
import { chosenQuery, sideOf } from "../../data/tokens.js";
import { answerLine } from "../../draw/answer_line.js";
import { context2d } from "../../draw/canvas.js";
import { colored } from "../../draw/color_scale.js";
import { el } from "../../draw/dom.js";
import { counted, number } from "../../draw/numbers.js";
import { badge } from "./pattern_badges.js";

export const STATISTICS = {
  entropy: "entropy (nats)",
  confidence: "confidence",
  sink: "weight on the first",
  prompt: "weight on the prompt",
};

export class HeadDetails {
  /** `go(cell, view)` opens the head in another view. @param {Context} context */
  constructor(context, go) {
    this.context = context;
    this.go = go;
    this.root = el("aside.aside", { "aria-label": "The chosen head" });
    this.answer = answerLine(this.root);
    this.bigCanvas = el("canvas.big", { role: "img" });
    this.scale = el("p.quietly.small");
    this.chosen = el("p.finding", { hidden: true }); // where the word looks that was chosen in Heads
    /** @type {ArrayAnswer | null} */
    this.large = null;
    this.shown = null;
    this.why = "";
    /** @type {Record<string, number>} */
    this.thresholds = {};
  }

  /** The chosen head, large: fetched as a tile, again and again while it is not computed whole. */
  async show(cell, { entry = 0, pool = "max" }) {
    this.shown = cell;
    this.looking?.abort(); // another head or pooling
    this.looking = new AbortController();
    const { signal } = this.looking;
    this.large = null;
    this.chosen.hidden = true;
    this.describe(cell);
    context2d(this.bigCanvas).clearRect(0, 0, this.bigCanvas.width, this.bigCanvas.height); // it was another's
    this.scale.textContent = "Computing …";
    const { queries, keys } = cell.call;
    const [height, width] = [Math.min(LARGE_MAP_SIDE, queries), Math.min(LARGE_MAP_SIDE, keys)];
    const params = {
      head: cell.head,
      entry,
      top: 0,
      left: 0,
      bottom: queries,
      right: keys,
      height,
      width,
      pool,
    };
    try {
      while (!signal.aborted) {
        const found = await this.context.source.array(
          `${callPath(this.context.trace, cell.call)}/tile`,
          params,
          signal,
        );
        if (signal.aborted) return;
        this.large = found;
        this.paint();
        if (found.computed >= 1) return;
        await new Promise((resume) => setTimeout(resume, AGAIN));
      }
    } catch (error) {
      this.context.fail(error);
    }
  }

  paint() {
    if (!this.large) return;
    const { data, shape, computed, note } = this.large;
    const most = Float32Array.from(data).reduce((a, b) => Math.max(a, b), 0);
    const tile = { data, width: shape[1], height: shape[0] };
    copy(tile, (x) => Math.sqrt(x / (most || 1)), this.context.palette, this.bigCanvas);
    const parts = ["queries down, keys across", `colours from 0 to ${number(most)}, square-root scale`];
    if (note) parts.push(note);
    if (computed < 1) parts.push(`${Math.floor(100 * computed)} % of it is computed, the rest is blank`);
    this.scale.textContent = parts.join("; ");
    this.showChosen();
  }

  /** The chosen word in this head, where the map is not pooled. */
  showChosen() {
    const { trace, state } = this.context;
    const at = chosenQuery(state.get());
    const { data, shape } = /** @type {ArrayAnswer} */ (this.large);
    const { call } = this.shown;
    this.chosen.hidden = true;
    if (at === null || at >= shape[0] || shape[0] !== call.queries || shape[1] !== call.keys) return;
    this.chosen.hidden = false;
    const row = Float32Array.from(data.subarray(at * shape[1], (at + 1) * shape[1]));
    const best = row.reduce((most, weight, j) => (weight > row[most] ? j : most), 0);
    const [own, other] = ["query", "key"].map((which) => sideOf(trace, call, which, "token").labels);
    this.chosen.textContent = `“${own[at]}” looks most at “${other[best]}” (${row[best].toFixed(2)}).`;
  }

  summary(heads) {
    this.close();
    this.shown = null;
    this.answer.show("");
    this.root.replaceChildren(
      el("h2", {}, this.context.trace.model || "Model"),
      el("p", {}, `${counted(this.context.trace.calls.length, "layer")}, ${counted(heads, "head")}.`),
      el(
        "p.quietly",
        {},
        "Choose a head to see it large, with its statistics and patterns. A double click opens it in Heads.",
      ),
    );
  }

  describe(cell) {
    this.bigCanvas.setAttribute("aria-label", `The weights of head ${cell.name}`);
    const figures = Object.entries(STATISTICS).filter(([name]) => name in cell.values);
    const scores = Object.entries(cell.scores ?? {}).filter(([name]) => !(name in STATISTICS));
    const least = (name) => (this.thresholds[name] == null ? "" : number(this.thresholds[name]));
    const open = this.context.headViews.map(({ name, title }) =>
      el("button", { type: "button", onclick: () => this.go(cell, name) }, title),
    );
    const statistics = figures.map(([name, words]) =>
      row(words, [number(cell.values[name])], false, STATISTIC_MEANINGS[name]),
    );
    const patterns = scores.map(([name, score]) => {
      const chance = cell.p[name] == null ? "" : number(cell.p[name]);
      return row(name, [number(score), least(name), chance], cell.labels.includes(name), patternMeaning(name));
    });
    const findings = cell.badges.slice(0, 3).map(({ label }) => patternSentence(label, cell.scores?.[label]));
    this.answer.show(`Head ${cell.name}${findings.length ? ` ${findings[0]}` : ", large"}`);
    const parts = [
      el("h2", {}, `Head ${cell.name}`, ...cell.badges.map(badge)),
      ...findings.map((finding) => el("p.finding", {}, `This head ${finding}.`)),
      this.chosen,
      el("p.quietly.small", {}, cell.call.name),
      this.bigCanvas,
      this.scale,
      el("div.buttons", {}, el("span.quietly", {}, "Open in"), ...open),
    ];
    if (statistics.length) parts.push(table(["statistic", "mean"], statistics));
    if (cell.from) parts.push(el("p.quietly.small", {}, cell.from));
    if (patterns.length) parts.push(table(["pattern", "score", "needs", "by chance"], patterns));
    if (this.why) parts.push(el("p.quietly", {}, `No patterns: ${this.why}.`));
    this.root.replaceChildren(...parts);
  }

  close() {
    this.looking?.abort();
  }
}

/** Draw a tile in the colours of a palette. */
export function copy(tile, shade, palette, canvas) {
  [canvas.width, canvas.height] = [tile.width, tile.height];
  context2d(canvas).drawImage(colored(tile, shade, palette.bytes), 0, 0);
}

function row(first, cells, marked = false, meaning = "") {
  return el(
    "tr",
    { "data-marked": marked },
    el("th", { scope: "row", title: meaning }, first),
    ...cells.map((cell) => el("td.number", {}, cell)),
  );
}

function table(titles, rows) {
  const head = titles.map((title, at) => el(at ? "th.number" : "th", { scope: "col" }, title));
  return el("table.figures", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
