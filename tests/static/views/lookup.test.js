import assert from "node:assert/strict";
import { test } from "node:test";
import { figure, fresh, parsed, sound, TABLES, written } from "../../../src/regard/viewer/static/views/lookup.js";

test("cells are vectors or labels", () => {
  assert.deepEqual(["300", "1, -2.5", "Bob Smith", "1,", ""].map(parsed), [[300], [1, -2.5], "Bob Smith", "1,", ""]);
  assert.equal(written([1, 2.5]), "1, 2.5");
  assert.deepEqual([0, 0.123456, -3, 1234567, 1e-5].map(figure), ["0", "0.1235", "−3", "1.23e6", "1.00e-5"]);
});

test("every table may stand in a link; what cannot be shown may not", () => {
  for (const name of Object.keys(TABLES)) assert.deepEqual(sound(fresh(name)), fresh(name));
  for (const name of Object.keys(TABLES)) assert.deepEqual(sound({ table: name }), fresh(name));
  assert.equal(sound({ table: "nothing" }), null);
  assert.equal(sound({ ...fresh("boxes"), energy: "None" }), null);
  assert.equal(sound({ ...fresh("boxes"), rows: Array(65).fill({ key: "1", value: "1" }) }), null);
  assert.equal(sound({ ...fresh("boxes"), parameters: { sigma: -1 } })?.parameters.sigma, 1);
  for (const [field, wrong] of [
    ["positions", "toString"],
    ["at", 32],
    ["at", 0.5],
  ])
    assert.deepEqual(sound({ ...fresh("boxes"), [field]: wrong }), fresh("boxes"));
});

test("links made before there were positions stay links", () => {
  const { positions, at, ...old } = fresh("boxes");
  assert.deepEqual([positions, at], ["none", 0]);
  assert.deepEqual(sound(old), { ...old, positions, at });
});
