import assert from "node:assert/strict";
import { test } from "node:test";
import { fresh } from "../../../src/regard/viewer/static/views/lookup.js";
import {
  average,
  energies,
  POSITIONS,
  pythonCall,
  shapes,
  weights,
} from "../../../src/regard/viewer/static/views/lookup_formulas.js";
import { close, expected } from "../expected.js";

test("weights and answers are those of regard.attend", () => {
  for (const { energy, normalize, parameters, query, keys, values, mask, weights: wanted, z } of expected.lookup) {
    const w = weights(normalize, energies(energy, query, keys, mask, parameters), parameters);
    close(w, wanted, 1e-9, `${energy} ${normalize}`);
    close(average(w, values), z, 1e-9, `${energy} ${normalize}`);
  }
});

test("where every key is masked all weights are 0", () => {
  for (const name of ["Proportional", "Softmax", "Sparsemax", "Entmax", "Hard", "Unnormalized"])
    assert.deepEqual(weights(name, [null, null], { temperature: 1, alpha: 1.5 }), [0, 0]);
});

test("without a normalizer the values of equal keys add up", () => {
  const w = weights(
    "Unnormalized",
    energies("Exact", ["apples"], [["apples"], ["pears"], ["apples"]], [false, false, false]),
  );
  assert.deepEqual(average(w, [[3], [2], [4]]), [7]);
});

test("Proportional refuses energies below zero", () => {
  assert.throws(() => weights("Proportional", [1, -2]), /needs energies ≥ 0, got -2/);
});

const { query, keys, at, parameters, energies: wanted } = expected.positions;

test("energies with positions are those of regard", () => {
  assert.deepEqual(Object.keys(wanted), Object.keys(POSITIONS));
  const open = keys.map(() => false);
  for (const positions of Object.keys(POSITIONS))
    close(energies("Dot", query, keys, open, parameters, { positions, at }), wanted[positions], 1e-9, positions);
});

const boxes = fresh("boxes");
const values = [[30], [40]];

test("one call of regard, with the query as a vector", () => {
  assert.equal(pythonCall(boxes, [360], values), "attend(q, K, V, energy=InverseDistance(), normalize=Proportional())");
  assert.equal(shapes(boxes, [360], values).replaceAll("\u00a0", " "), "q [1], K [2, 1], V [2, 1] → z [1]");
  const soft = { ...boxes, energy: "Gaussian", normalize: "Softmax", parameters: { sigma: 0.5, temperature: 2 } };
  assert.equal(pythonCall(soft, [360], values), "attend(q, K, V, energy=Gaussian(0.5), normalize=Softmax(2))");
});

test("positions and masks", () => {
  const rotary = { ...boxes, energy: "Dot", normalize: "Softmax", positions: "rotary", at: 3 };
  assert.equal(
    pythonCall(rotary, [1], values),
    "attend(q, K, V, energy=Rotary(Dot(), offset=3), normalize=Softmax(1))",
  );
  const masked = { ...boxes, rows: [{ masked: true }, {}] };
  assert(pythonCall(masked, [1], values).endsWith(", mask=torch.tensor([[False, True]]))"));
});

test("labels have no call", () => {
  assert.equal(pythonCall(fresh("phones"), "Bob Smith", ["555-1234"]), "");
});
