import assert from "node:assert/strict";
import { test } from "node:test";
import { fresh } from "../../../src/regard/viewer/static/views/lookup.js";
import { pythonCall, shapes } from "../../../src/regard/viewer/static/views/lookup_formulas.js";

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
