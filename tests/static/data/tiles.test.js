import assert from "node:assert/strict";
import { test } from "node:test";
import { bounds, edges, levelAt, pooled } from "../../../src/regard/viewer/static/data/tiles.js";
import { close, expected } from "../expected.js";

test("a cell of the level is between one and two pixels wide", () => {
  for (const scale of [48, 1, 0.9, 0.5, 0.3, 0.01, 1 / 4096]) {
    const width = scale * 2 ** levelAt(scale);
    assert(scale >= 1 ? levelAt(scale) === 0 : width >= 1 - 1e-9 && width < 2, `${scale}: ${width}`);
  }
});

test("tiles of a level cover the matrix once", () => {
  const [queries, keys] = [1000, 700];
  for (const level of [0, 1, 2]) {
    const seen = new Uint8Array(queries * keys);
    const reach = 256 * 2 ** level;
    for (let row = 0; row * reach < queries; row++)
      for (let column = 0; column * reach < keys; column++) {
        const { top, left, bottom, right, height, width } = bounds(level, row, column, queries, keys);
        assert.equal(height, Math.ceil((bottom - top) / 2 ** level));
        assert.equal(width, Math.ceil((right - left) / 2 ** level));
        for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) seen[i * keys + j] += 1;
      }
    assert(
      seen.every((times) => times === 1),
      `level ${level}`,
    );
  }
});

const { matrix, cases } = expected.pooling;

test("cells begin where the server's do", () => {
  for (const { window, edges: wanted } of cases) {
    assert.deepEqual(edges(window.top, window.bottom, window.height), wanted[0]);
    assert.deepEqual(edges(window.left, window.right, window.width), wanted[1]);
  }
});

test("the largest of every cell is the server's", () => {
  for (const item of cases)
    close(
      pooled((i) => matrix[i], 21, 13, item.window),
      item.max,
      1e-6,
      JSON.stringify(item.window),
    );
});

test("a rectangle that reaches beyond the matrix is cut at its end", () => {
  const window = { top: 0, left: 0, bottom: 99, right: 99, height: 21, width: 13 };
  close(
    pooled((i) => matrix[i], 21, 13, window),
    matrix.flat(),
  );
});

test("of contributions the one of largest size keeps its sign", () => {
  const signed = [
    [1, -3],
    [2, 0.5],
  ];
  const window = { top: 0, left: 0, bottom: 2, right: 2, height: 1, width: 1, signed: true };
  close(
    pooled((i) => signed[i], 2, 2, window),
    [-3],
  );
});
