import assert from "node:assert/strict";
import { test } from "node:test";
import { edges, pooled } from "../../../src/regard/viewer/static/data/tiles.js";
import { close, expected } from "../expected.js";

const { matrix, cases } = expected.pooling;

test("cells begin where the server's do", () => {
  for (const { window, edges: wanted } of cases) {
    assert.deepEqual(edges(window.top, window.bottom, window.height), wanted[0]);
    assert.deepEqual(edges(window.left, window.right, window.width), wanted[1]);
  }
});

test("the largest and the mean of every cell are the server's", () => {
  for (const item of cases)
    for (const pool of ["max", "mean"]) {
      const cells = pooled((i) => matrix[i], 21, 13, { ...item.window, pool });
      close(cells, item[pool], 1e-6, `${pool} of ${JSON.stringify(item.window)}`);
    }
});

test("a rectangle that reaches beyond the matrix is cut at its end", () => {
  const window = { top: 0, left: 0, bottom: 99, right: 99, height: 21, width: 13, pool: "max" };
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
  const window = { top: 0, left: 0, bottom: 2, right: 2, height: 1, width: 1, pool: "max", signed: true };
  close(
    pooled((i) => signed[i], 2, 2, window),
    [-3],
  );
});
