import assert from "node:assert/strict";
import { test } from "node:test";
import { makePalette } from "../../../src/regard/viewer/static/draw/palette.js";

const bytes = (css) => css.match(/\d+/g).map(Number);

/** WCAG 2: relative luminance, and the contrast of two colours. */
const luminance = (rgb) =>
  rgb
    .map((byte) => byte / 255)
    .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + [0.2126, 0.7152, 0.0722][i] * x, 0);
const contrast = (a, b) => {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
};

test("ramps begin and end at their stops", () => {
  const { ramp, signed } = makePalette("light");
  assert.deepEqual([ramp(0), ramp(1), ramp(-3), ramp(NaN)].map(bytes), [
    [255, 255, 255],
    [10, 31, 68],
    [255, 255, 255],
    [255, 255, 255],
  ]);
  assert.deepEqual([signed(-1), signed(1)].map(bytes), [
    [138, 59, 0],
    [11, 58, 107],
  ]);
});

test("ramps run one way in lightness, so that they read without colour", () => {
  for (const [theme, sign] of /** @type {[string, number][]} */ ([
    ["light", -1],
    ["dark", 1],
  ])) {
    const { ramp } = makePalette(theme);
    const values = Array.from({ length: 64 }, (_, i) => luminance(bytes(ramp(i / 63))));
    values.slice(1).forEach((value, i) => {
      assert(sign * (value - values[i]) > -1e-9, `${theme} at ${i}`);
    });
  }
});

test("text over the ramp and over heads has a contrast of 4.5 at least", () => {
  for (const theme of ["light", "dark"]) {
    const palette = makePalette(theme);
    const text = { "#000000": [0, 0, 0], "#ffffff": [255, 255, 255] };
    for (let i = 0; i <= 32; i++)
      assert(contrast(bytes(palette.ramp(i / 32)), text[palette.over(i / 32)]) >= 4.5, `${theme} ramp ${i}`);
    for (let i = 0; i < 16; i++)
      assert(contrast(bytes(palette.head(i, 16)), text[palette.overHead(i, 16)]) >= 4.5, `${theme} head ${i}`);
  }
});

test("no two of sixteen heads share a colour", () => {
  const { head } = makePalette("light");
  assert.equal(new Set(Array.from({ length: 16 }, (_, i) => head(i, 16))).size, 16);
});
