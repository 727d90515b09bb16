// Tokens and words: what stands beside rows and columns, and weights between words instead of pieces.
//
// As Clark et al. 2019: weight to a word is the sum over its pieces, weight from a word the mean over its pieces.

/** Tokens as people read them: WordPiece's ##, SentencePiece's ▁ and byte-level Ġ, Ċ are marks of joining, not text. */
export function plain(token) {
  const text = token
    .replace(/^##(?=.)/, "")
    .replace(/[▁Ġ]/g, " ")
    .replace(/[Ċ\n]/g, "↵")
    .trim();
  return text || (token ? "␣" : "∅");
}

/** What "<unk>" means, where one of these labels is one; else empty. @param {string[]} labels */
export function unknownNote(labels) {
  const mark = labels.find((label) => /^[<[]unk[>\]]$/i.test(label));
  return mark
    ? `${mark} stands for a word that is not in the model’s vocabulary: the model knows only that some word stands there.`
    : "";
}

/** The side of a call: {labels, groups: one list of positions per label, special: bools, parts: which sentence}.
 *
 * `which` is "query" or "key"; `level` is "token" or "word".
 */
export function sideOf(trace, call, which, level) {
  const name = which === "query" ? call.query_side : call.key_side;
  const count = which === "query" ? call.queries : call.keys;
  const given = trace.sides[name] ?? [];
  const tokens = Array.from({ length: count }, (_, i) => given[i] ?? `#${i}`);
  const groups = level === "word" ? grouped(tokens, trace.side_words[name]) : tokens.map((_, i) => [i]);
  const special = trace.side_special[name] ?? [];
  const parts = trace.side_sentences?.[name] ?? [];
  return {
    name,
    tokens,
    groups,
    labels: groups.map((group) => plain(group.map((i) => tokens[i].replace(/^##/, "")).join(""))),
    special: groups.map((group) => Boolean(special[group[0]])),
    parts: groups.map((group) => parts[group[0]] ?? 0),
  };
}

/** The label that holds a position. */
export function labelAt({ groups }, position) {
  let [low, high] = [0, groups.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (groups[middle][0] <= position) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The token that is chosen as a query in the Heads view, which other views show too; null where none is. @param {State} state */
export function chosenQuery({ pins }) {
  const names = (Array.isArray(pins) ? pins : []).filter((name) => /^q\d+$/.test(name));
  return names.length ? Number(names[names.length - 1].slice(1)) : null;
}

/** Neighbours of the same word. */
function grouped(tokens, words) {
  const groups = [];
  tokens.forEach((_, i) => {
    if (i > 0 && words[i] != null && words[i] === words[i - 1]) groups[groups.length - 1].push(i);
    else groups.push([i]);
  });
  return groups;
}

/** Weights over tokens [queries of one group][keys] → over the key groups: mean over rows, sum over columns.
 *
 * Contributions are parts of a sum: `adds` for the sum over rows too.
 */
export function gather(rows, groups, adds = false) {
  const out = new Float32Array(groups.length);
  for (const row of rows) for (let g = 0; g < groups.length; g++) for (const j of groups[g]) out[g] += row[j];
  if (!adds) for (let g = 0; g < groups.length; g++) out[g] /= rows.length || 1;
  return out;
}
