import assert from "node:assert/strict";
import { test } from "node:test";
import { evaluated } from "../../../src/regard/viewer/static/views/lookup_formulas.js";
import { close } from "../expected.js";

test("the usual normalizers can be written", () => {
  const e = [0.5, -1, 2];
  const total = e.reduce((sum, x) => sum + Math.exp(x), 0);
  close(
    evaluated("exp(e) / sum(exp(e))", e),
    e.map((x) => Math.exp(x) / total),
    1e-12,
  );
  assert.deepEqual(evaluated("e", e), e);
  assert.deepEqual(evaluated("1/n", [3, 4]), [0.5, 0.5]);
  assert.deepEqual(evaluated("relu(e - max(e) + 1)", e), [0, 0, 1]);
});

test("operators bind as in school", () => {
  assert.deepEqual(evaluated("2 + 3 * 4 - 6 / 3", [0]), [12]);
  assert.deepEqual(evaluated("-2^2", [0]), [-4]);
  assert.deepEqual(evaluated("2^-1", [0]), [0.5]);
  assert.deepEqual(evaluated("2^3^2", [0]), [512]);
  assert.deepEqual(evaluated("(1 - 2) - 3", [0]), [-4]);
  assert.deepEqual(evaluated("1.5e-1 + .5", [0]), [0.65]);
});

test("what is wrong is said in words", () => {
  for (const [text, words] of /** @type {[string, RegExp][]} */ ([
    ["", /ends too early/],
    ["e +", /ends too early/],
    ["alert(1)", /“alert” is not understood here/],
    ["constructor(e)", /“constructor” is not understood/],
    ["e e", /“e” is not understood/],
    ["sum(e", /not closed/],
    ["exp e", /exp needs brackets/],
    ["1 / 0", /is no number/],
    [`${"(".repeat(500)}e`, /too many brackets/],
  ]))
    assert.throws(() => evaluated(text, [1, 2]), words);
});
