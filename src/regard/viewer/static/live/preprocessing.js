// What the site's models read: texts by the project's tokenizers (data/tokenizer.py), resized pictures, resampled sounds.

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

/** The number of each piece's word, and whether it is special; as viewer/trace_view.py. */
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

// A picture file as the pixels that a model reads: resized as Pillow's bicubic filter does, bit by bit.

const MOST = 32_000_000; // pixels of a file: decoding takes about 16 bytes for each

/** The pixels [size, size, 3] of a Blob, 0 to 255; what is transparent becomes white. */
export async function pixelsOf(blob, size) {
  await checkSize(blob);
  const image = await createImageBitmap(blob).catch(() => {
    throw new Error("the file is not a picture that this browser can read");
  });
  const { width, height } = image;
  const canvas = new OffscreenCanvas(width, height);
  const pen = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  pen.fillStyle = "white";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  const plain = new Uint8Array(width * height * 3);
  for (let i = 0; i < width * height; i++) plain.set(data.subarray(4 * i, 4 * i + 3), 3 * i);
  return { pixels: resized(plain, width, height, size), width, height };
}

/** Refuse a picture by its size, which an <img> reads from the header: it decodes nothing before it is drawn. */
async function checkSize(blob) {
  const image = new Image();
  image.src = URL.createObjectURL(blob);
  await new Promise((done) => Object.assign(image, { onload: done, onerror: done }));
  URL.revokeObjectURL(image.src);
  const [width, height] = [image.naturalWidth, image.naturalHeight];
  if (width * height <= MOST) return; // of what is no picture 0
  const count = (number) => number.toLocaleString("en");
  throw new Error(
    `the picture has ${count(width)} × ${count(height)} pixels; at most ${count(MOST)} in all: make it smaller`,
  );
}

const BITS = 22; // of the filter's weights, which are whole numbers

/** [height, width, 3] bytes as [size, size, 3]: rows first, then columns, rounded to bytes after each. */
function resized(bytes, width, height, size) {
  const across = filters(width, size);
  const narrow = new Uint8Array(height * size * 3);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < size; x++)
      for (let c = 0; c < 3; c++)
        narrow[(y * size + x) * 3 + c] = sum(across[x], (at) => bytes[(y * width + at) * 3 + c]);
  const down = filters(height, size);
  const out = new Uint8Array(size * size * 3);
  for (let y = 0; y < size; y++)
    for (let x = 0; x < size; x++)
      for (let c = 0; c < 3; c++) out[(y * size + x) * 3 + c] = sum(down[y], (at) => narrow[(at * size + x) * 3 + c]);
  return out;
}

function sum({ first, weights }, at) {
  let total = 2 ** (BITS - 1);
  for (let i = 0; i < weights.length; i++) total += weights[i] * at(first + i);
  return Math.min(255, Math.max(0, Math.floor(total / 2 ** BITS)));
}

/** For each of `count` pixels the pixels of `length` it is made from, and their weights. */
function filters(length, count) {
  const scale = length / count;
  const wide = Math.max(scale, 1);
  const reach = 2 * wide;
  return Array.from({ length: count }, (_, at) => {
    const centre = (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const end = Math.min(length, Math.trunc(centre + reach + 0.5));
    const raw = Array.from({ length: end - first }, (_, i) => cubic((i + first - centre + 0.5) / wide));
    const total = raw.reduce((a, b) => a + b, 0);
    const weights = raw.map((weight) => {
      const share = (weight / total) * 2 ** BITS;
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    });
    return { first, weights };
  });
}

/** Keys's cubic convolution with a = −½. */
function cubic(x) {
  const [t, a] = [Math.abs(x), -0.5];
  if (t < 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
  return t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
}

// A sound file as the samples that a model reads: one channel, 16 bits, at the model's rate (data/media.py).

const CROSSINGS = 16; // zero crossings of the sinc on each side
const ROLL_OFF = 0.95; // where the filter begins to close, as a share of half the lower rate

/** The samples of a Blob, −32768 to 32767, at `rate`. */
export async function samplesOf(blob, rate) {
  const buffer = await blob.arrayBuffer();
  const sound = await decodedAt(rateOf(buffer), buffer);
  const mean = new Float32Array(sound.length);
  for (let at = 0; at < sound.numberOfChannels; at++)
    sound.getChannelData(at).forEach((value, i) => (mean[i] += value / sound.numberOfChannels));
  if (!mean.length) throw new Error("the sound is empty: it has no samples");
  const samples = resample(mean, sound.sampleRate, rate);
  return Float32Array.from(samples, (x) => Math.min(32767, Math.max(-32768, halfEven(x * 32768))));
}

/** As numpy rounds: halves to the even number. */
function halfEven(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? (low % 2 ? low + 1 : low) : Math.round(x);
}

/** The rate that the header of a WAV states, which the browser then decodes as it is; of other files 48 kHz. */
function rateOf(buffer) {
  const header = new DataView(buffer, 0, Math.min(28, buffer.byteLength));
  const plain = header.byteLength === 28 && header.getUint32(0) === 0x52494646; // "RIFF"
  return plain ? header.getUint32(24, true) : 48000;
}

async function decodedAt(rate, buffer) {
  try {
    return await new OfflineAudioContext(1, 1, rate).decodeAudioData(buffer);
  } catch {
    throw new Error("the file is not a sound that this browser can read");
  }
}

/** y(t) = Σ_k x[k] h(t·rate − k), h a sinc under a Hann window, at the times t = n / wanted. */
function resample(x, rate, wanted) {
  if (rate === wanted) return x;
  const cut = Math.min(1, wanted / rate) * ROLL_OFF;
  const reach = Math.ceil(CROSSINGS / cut);
  const out = new Float32Array(Math.ceil((x.length * wanted) / rate));
  for (let n = 0; n < out.length; n++) {
    const time = (n * rate) / wanted;
    const base = Math.floor(time);
    let sum = 0;
    for (let k = Math.max(0, base - reach); k <= Math.min(x.length - 1, base + reach); k++) {
      const u = k - time;
      if (Math.abs(u) < reach) sum += x[k] * cut * sinc(cut * u) * (0.5 + 0.5 * Math.cos((Math.PI * u) / reach));
    }
    out[n] = sum;
  }
  return out;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}
