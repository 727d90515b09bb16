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

/** The side of a call: {labels, groups: one list of positions per label, special: bools}.
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
  return {
    name,
    tokens,
    groups,
    labels: groups.map((group) => plain(group.map((i) => tokens[i].replace(/^##/, "")).join(""))),
    special: groups.map((group) => Boolean(special[group[0]])),
  };
}

/** The label that holds a position. */
export function labelAt({ groups }, position) {
  return Math.max(
    0,
    groups.findLastIndex((group) => group[0] <= position),
  );
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

/** The path of one call in the API. */
export function callPath(trace, call) {
  return `/api/traces/${encodeURIComponent(trace.id)}/calls/${encodeURIComponent(call.id)}`;
}

/** The call that is looked at: the one in the state, or the first. */
export function callOf(trace, state) {
  return trace.calls.find((call) => call.id === state.call) ?? trace.calls[0];
}

/** Whether the numbers of their layers tell calls apart. */
export function isNumbered(trace) {
  const layers = trace.calls.map((one) => one.layer);
  return !layers.includes(null) && new Set(layers).size === layers.length;
}

/** "3" where layers are enough to tell calls apart, else the module's name. */
export function callName(trace, call) {
  return isNumbered(trace) ? String(call.layer) : call.name;
}

/** The same without what all modules' names begin with: "decoder.0.cross" of "model.net.decoder.0.cross". */
export function ownName(trace, call) {
  if (isNumbered(trace)) return callName(trace, call);
  const names = trace.calls.map((one) => one.name.split("."));
  const own = call.name.split(".");
  let shared = 0;
  while (shared < own.length - 1 && names.every((parts) => parts.length > shared + 1 && parts[shared] === own[shared]))
    shared++;
  return own.slice(shared).join(".");
}

/** "Layer 3", or the module's name. */
export function layerTitle(trace, call) {
  return isNumbered(trace) ? `Layer ${call.layer}` : ownName(trace, call);
}

/** A call and its heads in the name of a file: ["layer3", "head7"]; of all heads nothing is said. */
export function fileParts(trace, call, heads) {
  const layer = isNumbered(trace) ? `layer${call.layer}` : call.name;
  const some = heads.length > 0 && (heads.length < call.heads || call.heads === 1);
  return [layer, some ? `head${heads.join("-")}` : ""];
}

// The answers of a model that contributions lead to: which one is chosen, and what it takes to compute them.
//
// GET /api/traces/{t}/answers gives {position, positions, kind, answer, minus, value, answers: [{id, piece, score, share}],
// calls: [{id, error, budget, kept, peak, totals}], missing: {call: why}}.

const PATH = (trace) => `/api/traces/${encodeURIComponent(trace.id)}/answers`;

/** @param {Context} context @param {QueryParameters} asked @param {AbortSignal} [signal] @returns {Promise<Answers>} */
export function fetchAnswers({ source, trace }, asked, signal) {
  return source.get(PATH(trace), asked, signal);
}

/** Why no contributions can be computed here, in words; empty where they can. @param {Context} context */
export function whyNot({ source, about, trace }) {
  const local = "With regard on your computer, this page computes what each token contributed: regard view";
  if (source.runs?.(PATH(trace)) === false) return `Contributions need a backward pass of the model. ${local}`;
  if (source.holds) return `A file runs no model, and contributions need a backward pass of it. ${local}`;
  if (!trace.made)
    return "Contributions need the model, and this trace holds only what it computed. Open the model with a text: regard view MODEL TEXT";
  if (!about.models.some((model) => model.name === trace.made?.model))
    return `Contributions need the model ${trace.made.model}, which is not installed here`;
  return "";
}

/** “Mary”, or “Mary” less “John”. @param {Answers} answers */
export function answerName({ answers, answer, minus }) {
  const name = (id) => `“${plain(answers.find((one) => one.id === id)?.piece ?? String(id))}”`;
  return minus == null ? name(answer) : `${name(answer)} rather than ${name(minus)}`;
}

/** What is measured, in a sentence, with its value. @param {Answers} answers @param {Trace} trace @param {string} value */
export function answerSentence(answers, trace, value) {
  const name = answerName(answers).replace(" rather than ", " less that to ");
  if (answers.kind !== "similarity") return `The score of ${answerName(answers)} is ${value}.`;
  const place = positionLabels(trace, answers.positions)[answers.position];
  const why = "This model writes nothing, so no answer of its own can be explained.";
  return `${why} Measured is how similar its last vectors of “${place}” and of ${name} are: their cosine is ${value}.`;
}

/** The parameters of a request for contributions. @param {Answers} answers */
export function targetOf({ position, answer, minus }) {
  return { position, answer, ...(minus == null ? {} : { minus }) };
}

/** The labels of the positions that have answers, of a trace. @param {Trace} trace @param {number} count */
export function positionLabels(trace, count) {
  const last = trace.calls[trace.calls.length - 1];
  const tokens = trace.sides[last.query_side] ?? [];
  return Array.from({ length: count }, (_, at) => (tokens[at] == null ? String(at) : plain(tokens[at])));
}

// What a head does, in plain words: a sentence and an explanation for each pattern that the server finds
// (seeing/patterns.py).

/** name → [what the head does, "of its weight" or another unit, what the pattern means]. */
const PATTERNS = {
  previous: ["looks at the previous token", "of its weight", "Most of the weight goes to the token just before."],
  next: ["looks at the next token", "of its weight", "Most of the weight goes to the token just after."],
  self: ["looks at the token itself", "of its weight", "Most of the weight stays on the same token."],
  first: [
    "looks at the first token",
    "of its weight",
    "Nearly all weight goes to the first token, which is often a way to do nothing.",
  ],
  sink: [
    "rests on the first token",
    "of its weight",
    "Much weight goes to the first token, whatever the text says: often a way to do nothing.",
  ],
  delimiter: [
    "looks at [SEP] and its like",
    "of its weight",
    "Most of the weight goes to tokens that separate sentences.",
  ],
  punctuation: ["looks at punctuation", "of its weight", "Most of the weight goes to full stops and commas."],
  "same word": [
    "looks at the same word from everywhere",
    "of its weight",
    "Much weight goes to one word of the text, from whichever word it looks: a habit, not a finding about the word it looks from.",
  ],
  broad: ["spreads its weight widely", "nats of entropy", "It looks at many tokens about equally."],
  positional: [
    "looks at a fixed distance",
    "of rows at the same offset",
    "Whatever the words are, its largest weight is at the same distance.",
  ],
  identical: [
    "looks at the same word elsewhere",
    "of its weight",
    "Most of the weight goes to other tokens with the same text.",
  ],
  "other sentence": [
    "looks at the other sentence",
    "of its weight",
    "Most of the weight crosses from one sentence of a pair to the other.",
  ],
  related: ["looks at related words", "of its weight", "Most of the weight goes to words of the same kind or stem."],
  duplicate: [
    "looks at an earlier copy",
    "of its weight",
    "Most of the weight goes to an earlier occurrence of the same token.",
  ],
  induction: [
    "continues an earlier copy",
    "of its weight",
    "It looks at what followed the same token before: the step by which models repeat a pattern.",
  ],
};

/** "looks at the previous token (0.80 of its weight)". @param {string} name @param {number | null | undefined} score */
export function patternSentence(name, score) {
  const [does, unit] = PATTERNS[name] ?? [`has the pattern “${name}”`, ""];
  return score == null ? does : `${does} (${score.toFixed(2)} ${unit})`;
}

/** What a pattern means, for tooltips. @param {string} name */
export function patternMeaning(name) {
  return PATTERNS[name]?.[2] ?? "";
}

/** Names of patterns and statistics with what they mean, for the list of terms. @returns {[string, string][]} */
export function terms() {
  const patterns = Object.entries(PATTERNS).map(([name, [, , meaning]]) => [name, meaning]);
  return /** @type {[string, string][]} */ ([...patterns, ...Object.entries(STATISTIC_MEANINGS).slice(0, 2)]);
}

/** Statistics of heads, explained. */
export const STATISTIC_MEANINGS = {
  entropy: "How widely a row spreads its weight, in nats: 0 is one token, larger is more tokens.",
  confidence: "The largest weight of a row, on average: 1 is all of it on one token.",
  sink: "The weight on the first token, on average.",
  prompt: "Of the tokens that were written: how much of their weight is on the prompt.",
};
