// Shade: from a weight to a colour. Scales are absolute, so one colour is one weight in every head and at every zoom.
import { context2d } from "./canvas.js";

export const SHADES = { log: "log", root: "root", linear: "linear" };

/** Where the logarithmic scale begins: a quarter of what even attention over `keys` would give, or a thousandth. */
export const least = (keys) => Math.min(0.001, 1 / (4 * keys));

/** Weight → 0 … 1. */
export function shader(kind, keys) {
  if (kind === "linear") return (w) => w;
  if (kind === "root") return Math.sqrt;
  const range = -Math.log(least(keys));
  return (w) => (w > 0 ? Math.max(0.02, 1 + Math.log(w) / range) : 0); // what is not exactly zero can be seen
}

/** Contribution → 0 … 1, with 1/2 for none: each sign by the scale of weights, as a share of the largest. */
export function signedShader(scale, peak) {
  return (c) => (1 + Math.sign(c) * Math.min(1, scale(Math.abs(c) / peak))) / 2;
}

/** Weights where the scale is at 0, at 1, and at round numbers between. */
export function marks(kind, keys) {
  if (kind !== "log") return [0, 0.01, 0.1, 0.25, 0.5, 1].filter((w) => kind === "root" || w === 0 || w >= 0.25);
  const powers = Math.ceil(-Math.log10(least(keys)) - 1e-9);
  const step = powers > 4 ? 2 : 1;
  return Array.from({ length: powers }, (_, i) => 10 ** -i).filter((_, i) => i % step === 0);
}

/** A tile as a canvas in the colours of a palette. */
export function colored(tile, shade, bytes) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [tile.width, tile.height];
  const pen = context2d(canvas);
  const image = pen.createImageData(tile.width, tile.height);
  const { data } = tile;
  for (let i = 0; i < data.length; i++) {
    const at = 3 * Math.round(Math.min(1, shade(data[i])) * 255);
    image.data[4 * i] = bytes[at];
    image.data[4 * i + 1] = bytes[at + 1];
    image.data[4 * i + 2] = bytes[at + 2];
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}
