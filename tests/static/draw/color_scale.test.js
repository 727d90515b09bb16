import assert from "node:assert/strict";
import { test } from "node:test";
import { marks, shader, signedShader } from "../../../src/regard/viewer/static/draw/colors.js";
import { close } from "../expected.js";

test("linear and root", () => {
  close([0, 0.25, 1].map(shader("linear", 10)), [0, 0.25, 1]);
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

test("marks of the scale", () => {
  assert.deepEqual(marks("linear", 10), [0, 0.25, 0.5, 1]);
  assert.deepEqual(marks("root", 10), [0, 0.01, 0.1, 0.25, 0.5, 1]);
  close(marks("log", 10), [1, 0.1, 0.01], 1e-12);
});
