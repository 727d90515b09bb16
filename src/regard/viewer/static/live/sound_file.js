// A sound file as the samples that a model reads: one channel, 16 bits, at the model's rate (data/sound_reader.py).

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
export function resample(x, rate, wanted) {
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
