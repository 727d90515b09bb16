// What regard computes (written by tools/viewer_javascript.py), and comparison of numbers.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

export const expected = JSON.parse(readFileSync(new URL("./expected.json", import.meta.url), "utf8"));

/** Every number as expected, up to `tolerance`. */
export function close(actual, wanted, tolerance = 1e-6, message = "") {
  const [a, b] = [Array.from(actual), Array.from(wanted)];
  assert.equal(a.length, b.length, `${message}: ${a.length} numbers, expected ${b.length}`);
  a.forEach((value, i) => {
    assert(Math.abs(value - b[i]) <= tolerance, `${message}: number ${i} is ${value}, expected ${b[i]}`);
  });
}
