import assert from "node:assert/strict";
import { test } from "node:test";
import { decoded, keyOf } from "../../../src/regard/viewer/static/data/sources.js";
import { close, expected } from "../expected.js";

test("one name for one question, as single_file.py writes it", () => {
  assert.equal(keyOf("/api/x"), "/api/x");
  assert.equal(keyOf("/api/x", { b: 1, a: "0,3", c: null, d: undefined }), "/api/x?a=0,3&b=1");
  assert.equal(keyOf("/api/x", { rows: "0:4", text: "a b&c" }), "/api/x?rows=0:4&text=a%20b%26c");
});

test("float16 becomes the same numbers as in PyTorch", () => {
  const { bits, values } = expected.float16;
  close(decoded(Uint16Array.from(bits).buffer, "float16"), values, 0);
});

test("infinities, not-a-numbers, bytes and float32", () => {
  const [plus, minus, nan] = decoded(Uint16Array.from([0x7c00, 0xfc00, 0x7e00]).buffer, "float16");
  assert.deepEqual([plus, minus, Number.isNaN(nan)], [Infinity, -Infinity, true]);
  assert.deepEqual([...decoded(Uint8Array.from([1, 255]).buffer, "uint8")], [1, 255]);
  assert.deepEqual([...decoded(Float32Array.from([0.5, -2]).buffer, "float32")], [0.5, -2]);
});
