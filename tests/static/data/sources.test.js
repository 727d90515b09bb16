import assert from "node:assert/strict";
import { test } from "node:test";
import { decoded, FileSource, keyOf } from "../../../src/regard/viewer/static/data/sources.js";
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

const CALL = "/api/traces/t/calls/0";

async function packed(numbers) {
  const stream = new Blob([Float32Array.from(numbers)]).stream().pipeThrough(new CompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(String.fromCharCode(...bytes));
}

/** Two heads of 3 × 4: head h, row i, column j is 100 h + 10 i + j. */
async function source() {
  const numbers = [0, 1].flatMap((h) => [0, 1, 2].flatMap((i) => [0, 1, 2, 3].map((j) => 100 * h + 10 * i + j)));
  const whole = { shape: [2, 3, 4], type: "float32", peaks: [], data: await packed(numbers) };
  return new FileSource({ json: { "/api/about": { version: "1" } }, arrays: { [`${CALL}/weights?entry=0`]: whole } });
}

test("heads, rows and columns are cut from what is held whole", async () => {
  const file = await source();
  const { data, shape } = await file.array(`${CALL}/weights`, { heads: "1", rows: "1:3", cols: "2:", type: "float16" });
  assert.deepEqual(
    [shape, [...data]],
    [
      [1, 2, 2],
      [112, 113, 122, 123],
    ],
  );
});

test("a tile is pooled from what is held whole", async () => {
  const file = await source();
  const window = { head: 1, entry: 0, top: 0, left: 0, bottom: 3, right: 4, height: 2, width: 2 };
  close((await file.array(`${CALL}/tile`, { ...window, pool: "max" })).data, [111, 113, 121, 123]);
});

test("what is not held is refused with what to do", async () => {
  const file = await source();
  assert.deepEqual(await file.get("/api/about"), { version: "1" });
  assert.deepEqual([file.holds(`${CALL}/weights`), file.holds(`${CALL}/neuron`)], [true, false]);
  await assert.rejects(file.get("/api/samples"), /does not hold that; for all of it: seen.save/);
  await assert.rejects(file.array(`${CALL}/neuron`, {}), /seen.save/);
  await assert.rejects(file.post(), /cannot run a model/);
});
