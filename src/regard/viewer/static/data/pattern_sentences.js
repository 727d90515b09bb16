// What a head does, in plain words: a sentence and an explanation for each pattern that the server finds
// (seeing/analysis/head_patterns.py).

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
