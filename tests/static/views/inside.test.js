// Matrices of the Inside view stand inside the drawing, with room for the tokens beside them and above them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { laidOut } from "../../../src/regard/viewer/static/views/inside.js";

const SIZES = { Q: [21, 16], Kᵀ: [16, 21], QKᵀ: [21, 21], W: [21, 21], X: [21, 64] };

test("tokens stand above the columns of keys, and above no others", () => {
  for (const step of [{ shows: ["QKᵀ", "W"] }, { product: ["Q", "Kᵀ", "QKᵀ"] }, { shows: ["X"] }]) {
    const { boxes } = laidOut(step, SIZES, 1, 1000, 600);
    const above = Object.fromEntries(boxes.map(({ name, room }) => [name, room.top > 0]));
    const expected = step.shows ? (name) => name !== "X" : (name) => name === "Kᵀ"; // below it, the result has the same
    for (const { name, y, room } of boxes) {
      assert.equal(above[name], expected(name), name);
      assert(y - room.top >= 20, "the name of the matrix has its line");
    }
  }
});

test("matrices fill a phone: tokens of one letter take less room than words", () => {
  const [letters, words] = [1, 9].map((longest) => laidOut({ shows: ["QKᵀ", "W"] }, SIZES, longest, 374, 500));
  for (const { width } of [letters, words]) assert(width <= 390);
  assert(letters.boxes[0].cell[0] > 1.25 * words.boxes[0].cell[0]);
  assert(2 * 21 * letters.boxes[0].cell[0] > 0.7 * 374);
});
