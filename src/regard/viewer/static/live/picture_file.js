// A picture file as the pixels that a model reads: resized as Pillow's bicubic filter does, bit by bit.
import { pictureSize } from "./picture_size.js";

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
export function resized(bytes, width, height, size) {
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
