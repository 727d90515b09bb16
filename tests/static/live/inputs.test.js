import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { checkSize, pictureSize } from "../../../src/regard/viewer/static/live/inputs.js";

// Small files that Pillow wrote, {data in base64, size}.
const pictures = JSON.parse(readFileSync(new URL("./pictures.json", import.meta.url), "utf8"));
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

for (const [name, { data, size }] of Object.entries(pictures))
  test(`the header of ${name} states its size`, () => {
    assert.deepEqual(pictureSize(bytesOf(data)), size);
  });

test("a header that is cut short, and what is no picture, has no size", () => {
  for (const { data } of Object.values(pictures))
    for (let length = 0; length < 12; length++) assert.equal(pictureSize(bytesOf(data).subarray(0, length)), null);
  for (const text of ["", "<svg width='9' height='9'/>", "%PDF-1.4", "RIFF....WAVEfmt "])
    assert.equal(pictureSize(new TextEncoder().encode(text)), null);
});

test("no damage makes the header an error of another kind, or a search without end", () => {
  for (const { data } of Object.values(pictures)) {
    const bytes = bytesOf(data);
    for (let at = 0; at < Math.min(bytes.length, 200); at++)
      for (const value of [0, 1, 0x21, 0x7f, 0xff]) pictureSize(bytes.with(at, value));
  }
});

test("a picture of too many pixels is refused before it is decoded", async () => {
  const png = bytesOf(pictures["a.png"].data);
  await checkSize(new Blob([png]));
  new DataView(png.buffer).setUint32(16, 60_000);
  new DataView(png.buffer).setUint32(20, 60_000);
  await assert.rejects(checkSize(new Blob([png])), /60,000 × 60,000 pixels; at most 32,000,000 in all/);
  new DataView(png.buffer).setUint32(20, 0);
  await assert.rejects(checkSize(new Blob([png])), /empty or damaged/);
  await assert.rejects(checkSize(new Blob(["text"])), /PNG, JPEG, GIF, WebP, BMP or AVIF/);
});
