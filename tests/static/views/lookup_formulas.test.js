import assert from "node:assert/strict";
import { test } from "node:test";
import { average, energies, weights } from "../../../src/regard/viewer/static/views/lookup_formulas.js";
import { close, expected } from "../expected.js";

test("weights and answers are those of regard.attend", () => {
  for (const { energy, normalize, parameters, query, keys, values, mask, weights: wanted, z } of expected.lookup) {
    const w = weights(normalize, energies(energy, query, keys, mask, parameters), parameters);
    close(w, wanted, 1e-9, `${energy} ${normalize}`);
    close(average(w, values), z, 1e-9, `${energy} ${normalize}`);
  }
});

test("where every key is masked all weights are 0", () => {
  for (const name of ["Proportional", "Softmax", "Sparsemax", "Entmax", "Hard", "Unnormalized", "Own"])
    assert.deepEqual(weights(name, [null, null], { temperature: 1, alpha: 1.5, own: "e" }), [0, 0]);
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
