import assert from "node:assert/strict";
import { test } from "node:test";
import { roundStep, ticks } from "../../../src/regard/viewer/static/draw/canvas.js";

test("steps are 1, 2 or 5 times a power of ten", () => {
  assert.deepEqual([0.9, 1, 1.1, 3, 6, 70].map(roundStep), [1, 1, 2, 5, 10, 100]);
});

test("ticks are round numbers within the range", () => {
  assert.deepEqual(ticks(0, 10), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(-0.31, 0.33), [-0.2, 0, 0.2]);
});
