import assert from "node:assert/strict";
import { test } from "node:test";
import { fresh } from "../../../src/regard/viewer/static/views/lookup.js";
import {
  average,
  energies,
  evaluated,
  POSITIONS,
  pythonCall,
  shapes,
  sinusoid,
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

test("the usual normalizers can be written", () => {
  const e = [0.5, -1, 2];
  const total = e.reduce((sum, x) => sum + Math.exp(x), 0);
  close(
    evaluated("exp(e) / sum(exp(e))", e),
    e.map((x) => Math.exp(x) / total),
    1e-12,
  );
  assert.deepEqual(evaluated("e", e), e);
  assert.deepEqual(evaluated("1/n", [3, 4]), [0.5, 0.5]);
  assert.deepEqual(evaluated("relu(e - max(e) + 1)", e), [0, 0, 1]);
});

test("operators bind as in school", () => {
  assert.deepEqual(evaluated("2 + 3 * 4 - 6 / 3", [0]), [12]);
  assert.deepEqual(evaluated("-2^2", [0]), [-4]);
  assert.deepEqual(evaluated("2^-1", [0]), [0.5]);
  assert.deepEqual(evaluated("2^3^2", [0]), [512]);
  assert.deepEqual(evaluated("(1 - 2) - 3", [0]), [-4]);
  assert.deepEqual(evaluated("1.5e-1 + .5", [0]), [0.65]);
});

test("what is wrong is said in words", () => {
  for (const [text, words] of /** @type {[string, RegExp][]} */ ([
    ["", /ends too early/],
    ["e +", /ends too early/],
    ["alert(1)", /“alert” is not understood here/],
    ["constructor(e)", /“constructor” is not understood/],
    ["e e", /“e” is not understood/],
    ["sum(e", /not closed/],
    ["exp e", /exp needs brackets/],
    ["1 / 0", /is no number/],
    [`${"(".repeat(500)}e`, /too many brackets/],
  ]))
    assert.throws(() => evaluated(text, [1, 2]), words);
});

const boxes = fresh("boxes");
const values = [[30], [40]];

test("one call of regard, with the query as a vector", () => {
  assert.equal(pythonCall(boxes, [360], values), "attend(q, K, V, energy=InverseDistance(), normalize=Proportional())");
  assert.equal(shapes(boxes, [360], values).replaceAll("\u00a0", " "), "q [1], K [2, 1], V [2, 1] → z [1]");
  const soft = { ...boxes, energy: "Gaussian", normalize: "Softmax", parameters: { sigma: 0.5, temperature: 2 } };
  assert.equal(pythonCall(soft, [360], values), "attend(q, K, V, energy=Gaussian(0.5), normalize=Softmax(2))");
});

test("positions, masks and formulas of one's own", () => {
  const rotary = { ...boxes, energy: "Dot", normalize: "Own", positions: "rotary", at: 3 };
  assert.equal(pythonCall(rotary, [1], values), "attend(q, K, V, energy=Rotary(Dot(), offset=3), normalize=f)");
  const masked = { ...boxes, rows: [{ masked: true }, {}] };
  assert(pythonCall(masked, [1], values).endsWith(", mask=torch.tensor([[False, True]]))"));
});

test("labels have no call", () => {
  assert.equal(pythonCall(fresh("phones"), "Bob Smith", ["555-1234"]), "");
});
