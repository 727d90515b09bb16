// What heads do, in words: of each head its patterns, the rarest in the model first.
import { patternMeaning } from "../../data/pattern_sentences.js";
import { el } from "../../draw/dom.js";

const COMMON = 0.25; // of all heads: a pattern of more than these tells little of any one of them

/** Gives every cell, which has `labels`, its `badges`: [{label, common}], the rarest first. */
export function rank(cells) {
  const counts = new Map();
  for (const label of cells.flatMap(({ labels }) => labels)) counts.set(label, (counts.get(label) ?? 0) + 1);
  for (const cell of cells)
    cell.badges = [...cell.labels]
      .sort((a, b) => counts.get(a) - counts.get(b)) // stable: among equals the most decided stays first
      .map((label) => ({ label, common: counts.get(label) > COMMON * cells.length }));
}

export function badge({ label, common }) {
  return el(common ? "span.label.common" : "span.label", { title: patternMeaning(label) }, label);
}
