import assert from "node:assert/strict";
import { test } from "node:test";
import { wavFile } from "../../../src/regard/viewer/static/views/sound.js";

test("a WAV file has the samples and the rate it was given", async () => {
  const bytes = new DataView(await wavFile(Float32Array.from([0, 1, -1, 2, 0.5]), 16000).arrayBuffer());
  const text = (at, count) => String.fromCharCode(...Array.from({ length: count }, (_, i) => bytes.getUint8(at + i)));
  assert.equal(text(0, 4) + text(8, 8) + text(36, 4), "RIFFWAVEfmt data");
  assert.equal(bytes.byteLength, 54);
  assert.equal(bytes.getUint32(24, true), 16000);
  const samples = [0, 1, 2, 3, 4].map((i) => bytes.getInt16(44 + 2 * i, true));
  assert.deepEqual(samples, [0, 32767, -32767, 32767, 16384]);
});
