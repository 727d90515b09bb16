import assert from "node:assert/strict";
import { test } from "node:test";
import { bounded, count, counted, exact, number } from "../../../src/regard/viewer/static/draw/elements.js";

test("numbers with the digits they have", () => {
  assert.deepEqual([0.0312, 2e-5, 0, 12.34, 123456, NaN].map(number), ["0.031", "2.0e-5", "0", "12.3", "1.2e+5", "–"]);
  assert.deepEqual([0, 0.25, 0.0001234].map(exact), ["0", "0.25000", "1.234e−4"]);
  assert.equal(count(1234567), "1,234,567");
  assert.deepEqual([counted(1, "head"), counted(12, "head")], ["1 head", "12 heads"]);
});

test("numbers within bounds", () => {
  assert.deepEqual([bounded(5, 0, 3), bounded(-1, 0, 3), bounded("x", 0, 3), bounded(null, 0, 3, 2)], [3, 0, 0, 2]);
});
