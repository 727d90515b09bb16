// Where a decoder that copies (a pointer-generator, See et al. 2017) took its words from.
//
// p_gen is the probability that a word comes from the vocabulary; with 1 − p_gen it is a word of the source, chosen by the
// weights of attention.
import { el } from "../../draw/dom.js";

const MOSTLY = 0.5;

/** How likely each label of the translation was to be copied: of a word the mean over its pieces; null without p_gen.
 *
 * @param {number[] | null | undefined} generation p_gen of each piece
 * @param {number[][]} groups the pieces of each label
 */
export function copyShares(generation, groups) {
  if (!generation) return null;
  return groups.map((group) => group.reduce((sum, piece) => sum + 1 - generation[piece], 0) / group.length);
}

/** What is said of one word: "copied with probability 0.97". Empty where it comes from the vocabulary: where that is more
 * likely, or where the source does not have the word.
 */
export function copyNote({ copies, rows, columns }, row) {
  const share = copies?.[row] ?? 0;
  return share >= MOSTLY && columns.includes(rows[row]) ? `copied with probability ${share.toFixed(2)}` : "";
}

/** The sentence below a translation; null for a decoder that does not copy. */
export function copySummary(table) {
  if (!table.copies) return null;
  const copied = table.rows.flatMap((label, row) =>
    copyNote(table, row) ? [`“${label}” ${copyNote(table, row)}`] : [],
  );
  const text = copied.length
    ? `This model can copy words: ${copied.join(", ")}. The others come from its vocabulary.`
    : "This model can copy words; here every word comes from its vocabulary.";
  return el("p.copying", {}, text);
}

/** The same of one piece, whichever way it was written. @param {number} generation p_gen */
export function copySentence(generation) {
  const [written, copied] = [generation, 1 - generation].map((share) => share.toFixed(2));
  return el("p.quietly", {}, `From the vocabulary with ${written} (p_gen), copied from the source with ${copied}.`);
}
