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

/** The number of each piece's word, and whether it is special; as viewer/traces.py. */
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
const HEADER = 4 << 20; // bytes that are searched for the size: photographs have their preview before it

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

/** Refuse a picture by what its header states, before anything is decoded. */
export async function checkSize(blob) {
  const stated = pictureSize(new Uint8Array(await blob.slice(0, HEADER).arrayBuffer()));
  if (!stated) throw new Error("the file is not a picture that can be read here: PNG, JPEG, GIF, WebP, BMP or AVIF");
  const [width, height] = stated;
  if (!(width && height)) throw new Error(`the picture has ${width} × ${height} pixels: it is empty or damaged`);
  if (width * height > MOST) {
    const count = (number) => number.toLocaleString("en");
    throw new Error(
      `the picture has ${count(width)} × ${count(height)} pixels; at most ${count(MOST)} in all: make it smaller`,
    );
  }
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

// The width and height that the header of a picture file states, without decoding it.

const ASCII = new TextDecoder("latin1");

/** [width, height] of a PNG, JPEG, GIF, WebP, BMP or AVIF; null for any other file, or one whose header is cut short. */
export function pictureSize(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (from, to) => ASCII.decode(bytes.subarray(from, to));
  try {
    if (text(1, 4) === "PNG") return [view.getUint32(16), view.getUint32(20)];
    if (text(0, 3) === "GIF") return gifSize(view);
    if (text(0, 4) === "RIFF" && text(8, 12) === "WEBP") return webpSize(view, text(12, 16));
    if (text(0, 2) === "BM") return [Math.abs(view.getInt32(18, true)), Math.abs(view.getInt32(22, true))];
    if (view.getUint16(0) === 0xffd8) return jpegSize(view);
    if (text(4, 8) === "ftyp") return avifSize(view, text(0, bytes.length));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // a number beyond the end
  }
  return null;
}

/** The canvas of a GIF, or its first frame where that is larger. */
function gifSize(view) {
  const size = [view.getUint16(6, true), view.getUint16(8, true)];
  const colors = view.getUint8(10);
  let at = 13 + (colors & 0x80 ? 3 << ((colors & 7) + 1) : 0);
  while (view.getUint8(at) === 0x21) {
    at += 2; // an extension: blocks until an empty one
    while (view.getUint8(at)) at += 1 + view.getUint8(at);
    at++;
  }
  if (view.getUint8(at) !== 0x2c) return null;
  const frame = [1, 3].map((x) => view.getUint16(at + x, true) + view.getUint16(at + x + 4, true));
  return size.map((side, i) => Math.max(side, frame[i]));
}

/** Of the still picture, lossy or lossless, or of the canvas of the extended format. */
function webpSize(view, kind) {
  const three = (at) => view.getUint16(at, true) + (view.getUint8(at + 2) << 16);
  if (kind === "VP8X") return [three(24) + 1, three(27) + 1];
  if (kind === "VP8 ") return [view.getUint16(26, true) & 0x3fff, view.getUint16(28, true) & 0x3fff];
  if (kind !== "VP8L") return null;
  const bits = view.getUint32(21, true);
  return [(bits & 0x3fff) + 1, ((bits >>> 14) & 0x3fff) + 1];
}

/** From the frame header, SOF0 to SOF15 without the tables DHT, JPG and DAC. */
function jpegSize(view) {
  for (let at = 2; ; ) {
    if (view.getUint8(at) !== 0xff) return null;
    const marker = view.getUint8(at + 1);
    if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
      return [view.getUint16(at + 7), view.getUint16(at + 5)];
    const bare = marker === 0xff || marker === 0x01 || (marker >= 0xd0 && marker <= 0xd8); // fill bytes, no content
    at += marker === 0xff ? 1 : bare ? 2 : 2 + view.getUint16(at + 2);
  }
}

/** The largest of the sizes that the boxes of type ispe state. */
function avifSize(view, text) {
  let size = null;
  for (let at = text.indexOf("ispe"); at >= 0; at = text.indexOf("ispe", at + 4)) {
    const next = [view.getUint32(at + 8), view.getUint32(at + 12)];
    if (!size || next[0] * next[1] > size[0] * size[1]) size = next;
  }
  return size;
}

// A sound file as the samples that a model reads: one channel, 16 bits, at the model's rate (data/media.py).

const CROSSINGS = 16; // zero crossings of the sinc on each side
const ROLL_OFF = 0.95; // where the filter begins to close, as a share of half the lower rate

/** The samples of a Blob, −32768 to 32767, at `rate`. */
export async function samplesOf(blob, rate) {
  const buffer = await blob.arrayBuffer();
  const sound = wavOf(buffer) ?? (await decodedBy(buffer));
  const mean = new Float32Array(sound.channels[0].length);
  for (const channel of sound.channels) channel.forEach((value, at) => (mean[at] += value / sound.channels.length));
  if (!mean.length) throw new Error("the sound is empty: it has no samples");
  const samples = resample(mean, sound.rate, rate);
  return Float32Array.from(samples, (x) => Math.min(32767, Math.max(-32768, halfEven(x * 32768))));
}

/** As numpy rounds: halves to the even number. */
function halfEven(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? (low % 2 ? low + 1 : low) : Math.round(x);
}

/** {channels, rate} of a WAV of whole numbers or floats; null for any other file. */
function wavOf(buffer) {
  const view = new DataView(buffer);
  const name = (at) => String.fromCharCode(...new Uint8Array(buffer, at, 4));
  if (buffer.byteLength < 44 || name(0) !== "RIFF" || name(8) !== "WAVE") return null;
  let format = null;
  for (let at = 12; at + 8 <= buffer.byteLength; ) {
    const size = view.getUint32(at + 4, true);
    if (name(at) === "fmt ")
      format = {
        kind: view.getUint16(at + 8, true),
        count: view.getUint16(at + 10, true),
        rate: view.getUint32(at + 12, true),
        bits: view.getUint16(at + 22, true),
      };
    if (name(at) === "data" && format) return pcmOf(view, at + 8, Math.min(size, buffer.byteLength - at - 8), format);
    at += 8 + size + (size % 2);
  }
  return null;
}

function pcmOf(view, start, size, { kind, count, rate, bits }) {
  const readers = {
    "1/8": (at) => (view.getUint8(at) - 128) / 128,
    "1/16": (at) => view.getInt16(at, true) / 32768,
    "1/24": (at) => ((view.getInt16(at + 1, true) << 8) | view.getUint8(at)) / 8388608,
    "1/32": (at) => view.getInt32(at, true) / 2147483648,
    "3/32": (at) => view.getFloat32(at, true),
    "3/64": (at) => view.getFloat64(at, true),
  };
  const read = readers[`${kind}/${bits}`];
  if (!read || !count) return null;
  const width = bits / 8;
  const length = Math.floor(size / (width * count));
  const channels = Array.from({ length: count }, (_, channel) =>
    Float32Array.from({ length }, (_, at) => read(start + (at * count + channel) * width)),
  );
  return { channels, rate };
}

/** By the browser: FLAC, OGG, MP3 and what else it knows. */
async function decodedBy(buffer) {
  const rate = 48000;
  try {
    const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(buffer);
    return { channels: Array.from({ length: sound.numberOfChannels }, (_, at) => sound.getChannelData(at)), rate };
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
