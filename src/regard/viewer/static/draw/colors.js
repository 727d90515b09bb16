// Colours: ramps that are even to the eye, and one colour per head.
//
// Both are mixed in OKLab (Ottosson 2020), where equal steps look equal. Ramps run in lightness from the page's
// background on, so they read without colour as well. The twelve colours of heads lie at least 0.085 apart in OKLab for
// normal vision and for protanopia, deuteranopia and tritanopia (the matrices of Machado et al. 2009), and have a contrast
// of 3 at least with the page; tests/static/draw/colors.test.js checks both. Heads also have a number and a place.
import { sheet } from "./canvas.js";

const RAMPS = {
  light: ["#ffffff", "#d5e5f1", "#8ebbd9", "#3d7fb6", "#1a4a82", "#0a1f44"],
  dark: ["#17181c", "#1d3557", "#2a6f97", "#4fb3bf", "#b8e3c4", "#fffbe0"],
};
const SIGNED = {
  light: ["#8a3b00", "#e08a3c", "#f6d3ae", "#ffffff", "#aed0ea", "#3d82bd", "#0b3a6b"],
  dark: ["#ffd9b0", "#e08a3c", "#7a3d10", "#17181c", "#1c4a75", "#4d9bd6", "#cfe8ff"],
};
const HEADS = {
  light: "006ccc b4180c 848400 600054 f0606c 181890 9c5490 609c9c a878f0 006c48 54486c 3c300c",
  dark: "6c90fc fcd818 b43c00 0cccd8 90b400 cc6cb4 3cfca8 d8a890 0c60cc 908460 c0e4fc 845484",
};
const PAPERS = { light: "#fbfbf9", dark: "#17181c" }; // as in shell.css
const DISTANCE = 0.5; // from the page, of a head's colour: about the mean
const STEPS = 256;

/** Colours of a theme. `ramp(x)`, x from 0 to 1; `signed(x)`, from −1 to 1; `head(i, n)`; each a CSS colour. */
export function makePalette(theme) {
  const ramp = table(RAMPS[theme]);
  const signed = table(SIGNED[theme]);
  return {
    theme,
    ramp: (x) => css(ramp, x),
    /** Black or white, whichever is easier to read on `ramp(x)`. */
    over: (x) => over(ramp, x),
    signed: (x) => css(signed, (x + 1) / 2),
    /** Black or white, on `signed(x)`. */
    overSigned: (x) => over(signed, (x + 1) / 2),
    /** The ramp as bytes, 256 × RGB, for filling images. */
    bytes: ramp,
    signedBytes: signed,
    head: (i) => `rgb(${headColor(i, theme)})`,
    /** Black or white, on the colour of a head. */
    overHead: (i) => readable(headColor(i, theme)),
    /** What an opacity is multiplied by so that every head's colour is equally far from the page (in OKLab). */
    headOpacity: (i) => DISTANCE / fromPaper(headColor(i, theme), theme),
  };
}

function table(stops) {
  const points = stops.map((stop) => toLab(hex(stop)));
  const out = new Uint8ClampedArray(STEPS * 3);
  for (let i = 0; i < STEPS; i++) {
    const x = (i / (STEPS - 1)) * (points.length - 1);
    const at = Math.min(points.length - 2, Math.floor(x));
    const lab = points[at].map((value, c) => value + (points[at + 1][c] - value) * (x - at));
    out.set(fromLab(lab), i * 3);
  }
  return out;
}

function css(bytes, x) {
  const at = 3 * Math.round(Math.min(1, Math.max(0, x || 0)) * (STEPS - 1));
  return `rgb(${bytes[at]},${bytes[at + 1]},${bytes[at + 2]})`;
}

function over(bytes, x) {
  const at = 3 * Math.round(Math.min(1, Math.max(0, x || 0)) * (STEPS - 1));
  return readable(bytes.subarray(at, at + 3));
}

/** By the contrast ratio of WCAG 2: the better of the two is never below 4.5. */
function readable(rgb) {
  const [r, g, b] = Array.from(rgb, linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

function linear(byte) {
  const x = byte / 255;
  return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
}

/** After twelve heads the colours come again, a little lighter or darker each time. */
function headColor(i, theme) {
  const colors = HEADS[theme].split(" ");
  const color = hex(`#${colors[i % colors.length]}`);
  const again = Math.floor(i / colors.length) % 4;
  if (!again) return color;
  const [lightness, a, b] = toLab(color);
  return fromLab([lightness + (theme === "dark" ? -0.03 : 0.03) * again, a, b]);
}

/** How far a colour is from the page. */
function fromPaper(rgb, theme) {
  const [color, paper] = [toLab(Array.from(rgb)), toLab(hex(PAPERS[theme]))];
  return Math.hypot(...color.map((x, c) => x - paper[c]));
}

function hex(text) {
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

function toLab(rgb) {
  const [r, g, b] = rgb.map(linear);
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function fromLab([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const light = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return light.map((c) => {
    const x = Math.min(1, Math.max(0, c));
    return Math.round(255 * (x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055));
  });
}

// Shade: from a weight to a colour. Scales are absolute, so one colour is one weight in every head and at every zoom.

/** Where the logarithmic scale begins: a quarter of what even attention over `keys` would give, or a thousandth. */
export const least = (keys) => Math.min(0.001, 1 / (4 * keys));

/** Weight → 0 … 1. */
export function shader(kind, keys) {
  if (kind === "root") return Math.sqrt;
  const range = -Math.log(least(keys));
  return (w) => (w > 0 ? Math.max(0.02, 1 + Math.log(w) / range) : 0); // what is not exactly zero can be seen
}

/** Contribution → 0 … 1, with 1/2 for none: each sign by the scale of weights, as a share of the largest. */
export function signedShader(scale, peak) {
  return (c) => (1 + Math.sign(c) * Math.min(1, scale(Math.abs(c) / peak))) / 2;
}

/** A tile as a canvas in the colours of a palette. */
export function colored(tile, shade, bytes) {
  const pen = sheet(tile.width, tile.height);
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
  return pen.canvas;
}
