import assert from "node:assert/strict";
import { test } from "node:test";
import { Habits, Links } from "../../../src/regard/viewer/static/data/weights.js";
import { close, expected } from "../expected.js";

const side = { groups: [[0], [1, 2], [3]] };
const matrix = [
  [1, 0, 0, 0],
  [0.2, 0.8, 0, 0],
  [0.4, 0.2, 0.4, 0],
  [0.1, 0.3, 0.2, 0.4],
];
const dense = {
  dense: true,
  call: { heads: 1, queries: 4, keys: 4 },
  row: (_, i) => ({ data: Float32Array.from(matrix[i]) }),
  column: (a, b) => ({
    data: Float32Array.from(matrix, (row) => row.slice(a, b).reduce((sum, weight) => sum + weight, 0)),
  }),
};

test("from a label: the mean over its rows, strongest key first", () => {
  const { keys, weights } = new Links(dense, side, side).from(0, 1);
  assert.deepEqual([...keys], [1, 0]);
  close(weights, [0.7, 0.3]);
});

test("to a label: the sum over its columns", () => {
  close(new Links(dense, side, side).to(1), [0, 0.7, 0.5]);
});

test("contributions add up over rows, and are sorted by size", () => {
  const signed = matrix.map((row) => row.map((x, j) => (j === 1 ? -x : x)));
  const rows = { ...dense, signed: true, row: (_, i) => ({ data: Float32Array.from(signed[i]) }) };
  const links = new Links(rows, side, side);
  const found = links.from(0, 1);
  assert.deepEqual([...found.keys], [0, 1]);
  close(found.weights, [0.6, -0.6]);
});

test("of the strongest keys alone the links are the same where they hold everything", () => {
  const rows = {
    dense: false,
    call: dense.call,
    row: (_, i) => {
      const order = [0, 1, 2, 3].sort((a, b) => matrix[i][b] - matrix[i][a]);
      return { values: Float32Array.from(order, (j) => matrix[i][j]), indices: Int32Array.from(order) };
    },
  };
  const links = new Links(rows, side, side);
  const { keys, weights } = links.from(0, 1);
  assert.deepEqual([...keys].slice(0, 2), [1, 0]);
  close(weights.slice(0, 2), [0.7, 0.3]);
});

test("habits are those of regard.seeing.habit", () => {
  for (const { weights, heads, queries, keys, distances, habit } of expected.habit) {
    const habits = new Habits(weights, heads, queries, keys, distances);
    const found = weights.map((w, at) => {
      const [i, j] = [Math.floor(at / keys) % queries, at % keys];
      return w ? habits.of(Math.floor(at / (queries * keys)), i, j, w) : 0;
    });
    close(found, habit, 1e-9);
  }
});
