// The project's tokenizers (data/tokenizer.py) in JavaScript: a tokenizer.json in, ids and pieces out.

export const BEGIN = 1;
export const END = 2;
export const UNKNOWN = 3;
const SPACE = "▁"; // stands for the space before a word

export class Tokenizer {
  /** @param {any} json the content of a tokenizer.json */
  constructor(json) {
    const { model, normalizer, pre_tokenizer, decoder } = json;
    this.vocabulary = new Map(Object.entries(model.vocab));
    this.names = Array(this.vocabulary.size).fill("");
    for (const [piece, id] of this.vocabulary) this.names[id] = piece;
    this.ranks = new Map((model.merges ?? []).map((pair, rank) => [pair.join("\n"), rank]));
    this.merges = model.type === "BPE";
    if (!this.merges && model.type !== "WordLevel")
      throw new Error(`a tokenizer of type ${model.type} is not known here`);
    this.lowercase = normalizer.normalizers.some((one) => one.type === "Lowercase");
    this.pattern = patternOf(pre_tokenizer);
    this.marked = JSON.stringify(pre_tokenizer).includes("Metaspace"); // a space belongs to the word after it
    this.spaced = Boolean(decoder);
    this.cache = new Map();
  }

  get size() {
    return this.names.length;
  }

  /** The ids of a text, without <s> and </s>. */
  encode(text) {
    const plain = text.normalize("NFC");
    return this.words(this.lowercase ? plain.toLowerCase() : plain).flatMap((word) => this.word(word));
  }

  /** The same for a text that begins in the middle of a line: without the space that `encode` puts there. */
  continued(text) {
    const ids = this.encode(text);
    return ids.length && this.names[ids[0]] === SPACE && !text.startsWith(" ") && !text.startsWith(SPACE)
      ? ids.slice(1)
      : ids;
  }

  /** The parts of a text that pieces never cross. */
  words(text) {
    if (!this.pattern) return text.split(/\s+/u).filter(Boolean);
    if (!text) return [];
    if (!this.marked) return text.split(/\s+/u).flatMap((word) => word.match(this.pattern) ?? []);
    let marked = text.replaceAll(" ", SPACE);
    if (!marked.startsWith(SPACE)) marked = SPACE + marked;
    const parts = [];
    let end = 0;
    for (const match of marked.matchAll(this.pattern)) {
      if (match.index > end) parts.push(marked.slice(end, match.index));
      parts.push(match[0]);
      end = match.index + match[0].length;
    }
    if (end < marked.length) parts.push(marked.slice(end));
    return parts;
  }

  word(word) {
    let ids = this.cache.get(word);
    if (!ids) {
      ids = this.merges ? this.merged(word) : [this.vocabulary.get(word) ?? UNKNOWN];
      ids = ids.map((id) => (id > END ? id : UNKNOWN)); // a word "</s>" of the text does not end it
      this.cache.set(word, ids);
    }
    return ids;
  }

  /** Byte-pair encoding: of all neighbours, the pair that was learned first is joined, until none is left. */
  merged(word) {
    /** @type {(string | null)[]} */
    const pieces = []; // null is <unk>; several in a row are one
    for (const symbol of word) {
      const known = this.vocabulary.has(symbol);
      if (known || pieces.length === 0 || pieces.at(-1) !== null) pieces.push(known ? symbol : null);
    }
    for (;;) {
      let [best, at] = [Infinity, -1];
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = this.ranks.get(`${pieces[i]}\n${pieces[i + 1]}`) ?? Infinity;
        if (pieces[i] !== null && pieces[i + 1] !== null && rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return pieces.map((piece) => (piece === null ? UNKNOWN : (this.vocabulary.get(piece) ?? UNKNOWN)));
      pieces.splice(at, 2, `${pieces[at]}${pieces[at + 1]}`);
    }
  }

  pieces(ids) {
    return ids.map((id) => this.names[id]);
  }

  /** The text of these ids; <pad>, <s> and </s> are left out. */
  decode(ids) {
    const pieces = this.pieces(ids.filter((id) => id > END));
    if (!this.spaced) return pieces.join(" ");
    return pieces.map((piece, at) => piece.replaceAll(SPACE, at ? " " : "")).join("");
  }

  /** The text of ids from the middle of a text, with the space before its first word. */
  running(ids) {
    const pieces = this.pieces(ids);
    return this.spaced ? pieces.join("").replaceAll(SPACE, " ") : pieces.map((piece) => ` ${piece}`).join("");
  }
}

/** The pattern of the words; null where spaces separate them. */
function patternOf(parts) {
  if (parts.type === "WhitespaceSplit") return null;
  const split = parts.pretokenizers.find((one) => one.type === "Split");
  const source = split.pattern.Regex;
  return source.startsWith("(?m)") ? new RegExp(source.slice(4), "gsu") : new RegExp(source, "gu");
}

const SPECIAL = /^(\[[A-Z]+\d*\]|<\/?[a-z]+>|<\|.+\|>|<(start|end)_of_\w+>)$/;

/** The number of each piece's word, and whether it is special; as viewer/data/token_labels.py. */
export function labelsOf(tokens) {
  const special = tokens.map((token) => SPECIAL.test(token));
  const begins = tokens.some((token) => token.startsWith(SPACE));
  const words = [];
  let word = -1;
  tokens.forEach((token, at) => {
    const fresh = !begins || (token.startsWith(SPACE) && (at === 0 || ![SPACE, "Ġ", " "].includes(tokens[at - 1])));
    if (at === 0 || fresh || special[at] || special[at - 1]) word += 1;
    words.push(word);
  });
  return { tokens, words, special };
}
