import assert from "node:assert/strict";
import { test } from "node:test";
import { makePalette, shader, signedShader } from "../../../src/regard/viewer/static/draw/colors.js";
import { close } from "../expected.js";

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
      assert(contrast(bytes(palette.head(i)), text[palette.overHead(i)]) >= 4.5, `${theme} head ${i}`);
  }
});

test("equal weights are equally far from the page in every head's colour", () => {
  for (const [theme, paper] of /** @type {[string, number[]][]} */ ([
    ["light", [251, 251, 249]],
    ["dark", [23, 24, 28]],
  ])) {
    const palette = makePalette(theme);
    const far = Array.from({ length: 12 }, (_, i) => {
      const opacity = 0.5 * palette.headOpacity(i);
      assert(opacity > 0.3 && opacity < 1, `${theme} head ${i}: ${opacity}`);
      const drawn = bytes(palette.head(i)).map((byte, c) => opacity * byte + (1 - opacity) * paper[c]);
      return Math.hypot(...labOf(drawn, VISIONS.normal).map((x, c) => x - labOf(paper, VISIONS.normal)[c]));
    });
    assert(Math.max(...far) < 1.35 * Math.min(...far), `${theme}: ${far}`); // without it about twice
  }
});

test("the two signs can be told apart in every vision, and text on them can be read", () => {
  for (const theme of ["light", "dark"]) {
    const { signed, overSigned } = makePalette(theme);
    const text = { "#000000": [0, 0, 0], "#ffffff": [255, 255, 255] };
    for (let i = 1; i <= 10; i++) {
      const [less, more] = [bytes(signed(-i / 10)), bytes(signed(i / 10))];
      assert(contrast(less, text[overSigned(-i / 10)]) >= 4.5, `${theme} −${i / 10}`);
      assert(contrast(more, text[overSigned(i / 10)]) >= 4.5, `${theme} ${i / 10}`);
      if (i < 3) continue; // near zero both are the page
      for (const [name, vision] of Object.entries(VISIONS)) {
        const [a, b] = [labOf(less, vision), labOf(more, vision)];
        assert(Math.hypot(...a.map((x, c) => x - b[c])) > 0.085, `${theme}, ${name}: ±${i / 10}`);
      }
    }
  }
});

test("no two of sixteen heads share a colour", () => {
  const { head } = makePalette("light");
  assert.equal(new Set(Array.from({ length: 16 }, (_, i) => head(i))).size, 16);
});

// Machado, Oliveira and Fernandes 2009: how dichromats see, as matrices over linear RGB.
const VISIONS = {
  normal: [
    [1, 0, 0],
    [0, 1, 0],
    [0, 0, 1],
  ],
  protanopia: [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
  ],
  deuteranopia: [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.01182, 0.04294, 0.968881],
  ],
  tritanopia: [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.3039],
  ],
};

/** A colour in OKLab as somebody sees it. */
function labOf(rgb, vision) {
  const linear = rgb.map((byte) => byte / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  const [r, g, b] = vision.map((row) =>
    Math.min(
      1,
      Math.max(
        0,
        row.reduce((sum, x, i) => sum + x * linear[i], 0),
      ),
    ),
  );
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

test("twelve heads are told apart in every kind of colour vision, and from the page", () => {
  const papers = { light: [251, 251, 249], dark: [23, 24, 28] };
  for (const theme of ["light", "dark"]) {
    const colors = Array.from({ length: 12 }, (_, i) => bytes(makePalette(theme).head(i)));
    for (const [name, vision] of Object.entries(VISIONS)) {
      const seen = colors.map((color) => labOf(color, vision));
      for (let i = 0; i < 12; i++)
        for (let j = 0; j < i; j++) {
          const apart = Math.hypot(...seen[i].map((x, c) => x - seen[j][c]));
          assert(apart >= 0.085, `${theme}, ${name}: heads ${j} and ${i} are ${apart} apart`);
        }
    }
    for (const color of colors) assert(contrast(color, papers[theme]) >= 3, `${theme}: ${color}`);
  }
});

test("the root", () => {
  close([0, 0.25, 1].map(shader("root", 10)), [0, 0.5, 1]);
});

test("the logarithmic scale begins at a quarter of even attention, or a thousandth", () => {
  close([1, 0.1, 0.01].map(shader("log", 10)), [1, 2 / 3, 1 / 3], 1e-12);
  close([0, 1e-9].map(shader("log", 10)), [0, 0.02]); // what is not exactly zero can be seen
  close([shader("log", 2500)(1e-4)], [0.02]); // 1 / (4 · 2500) = 1e-4
  close([shader("log", 2500)(1e-2)], [0.5]);
});

test("contributions are shares of the largest, none in the middle", () => {
  close([-4, -1, 0, 1, 4, 9].map(signedShader(shader("root", 10), 4)), [0, 0.25, 0.5, 0.75, 1, 1]);
});
