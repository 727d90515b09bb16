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
