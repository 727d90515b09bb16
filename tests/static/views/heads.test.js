import assert from "node:assert/strict";
import { test } from "node:test";
import { comparable, compareLayers, otherCall, stepOther } from "../../../src/regard/viewer/static/views/heads.js";

const call = (id, keys = "text", size = 5) => ({ id, query_side: "text", key_side: keys, queries: 5, keys: size });
/** @type {any} */
const trace = { calls: [call("0"), call("1"), call("2", "source"), call("3"), call("4", "text", 4)] };
const [first, second, cross, last, short] = trace.calls;

test("only layers between the same tokens are compared", () => {
  assert.deepEqual(comparable(trace, first), [second, last]);
  assert.deepEqual(comparable(trace, cross), []);
  assert.deepEqual(comparable(trace, short), []);
});

test("the second layer is the one asked for, or the nearest that can be compared", () => {
  assert.equal(otherCall(trace, first, {}), null);
  assert.equal(otherCall(trace, first, { other: "3" }), last);
  assert.equal(otherCall(trace, first, { other: "0" }), second); // the first layer is the same
  assert.equal(otherCall(trace, first, { other: "4" }), last); // of another size
  assert.equal(otherCall(trace, first, { other: "no layer" }), second);
  assert.equal(otherCall(trace, cross, { other: "0" }), null);
});

test("the second layer is chosen, changed and left out", () => {
  const set = [];
  const view = (now, other) => ({
    trace,
    call: now,
    panels: [{ call: now }, ...(other ? [{ call: other }] : [])],
    context: { state: { set: (patch) => set.push(patch.other) } },
  });
  compareLayers(view(first, null), true);
  compareLayers(view(last, null), true);
  compareLayers(view(cross, null), true);
  compareLayers(view(first, second), false);
  stepOther(view(first, null), 1);
  stepOther(view(first, second), 1);
  stepOther(view(first, second), -1); // there is none
  assert.deepEqual(set, ["1", "1", null, null, "1", "3"]);
});
