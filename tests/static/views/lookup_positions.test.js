import assert from "node:assert/strict";
import { test } from "node:test";
import { energies, POSITIONS, sinusoid } from "../../../src/regard/viewer/static/views/lookup_formulas.js";
import { close, expected } from "../expected.js";

const { query, keys, at, parameters, energies: wanted, distances, curves, sinusoids } = expected.positions;

test("energies with positions are those of regard", () => {
  assert.deepEqual(Object.keys(wanted), Object.keys(POSITIONS));
  const open = keys.map(() => false);
  for (const positions of Object.keys(POSITIONS))
    close(energies("Dot", query, keys, open, parameters, { positions, at }), wanted[positions], 1e-9, positions);
});

test("pictures are those of regard", () => {
  sinusoids.forEach((row, p) => close(sinusoid(p, row.length), row, 1e-9));
  for (const [name, curve] of Object.entries(curves))
    close(
      distances.map((d) => POSITIONS[name].byDistance(d, query.length, parameters)),
      curve,
      1e-9,
      name,
    );
});

test("the row of a position is its vector, or its biases", () => {
  close(POSITIONS.rotary.row(3, 4), [Math.cos(3), Math.cos(3 * 0.01)], 1e-12);
  close(POSITIONS.alibi.row(1, 3, { slope: 0.5 }), [-0.5, 0, -0.5], 1e-12);
});
