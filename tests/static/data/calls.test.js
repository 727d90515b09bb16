import assert from "node:assert/strict";
import { test } from "node:test";
import { callName, callOf, callPath, fileParts, ownName } from "../../../src/regard/viewer/static/data/tokens.js";

const call = (id, name, layer) => ({ id, name, layer, heads: 4 });
const layers = { id: "a/b", calls: [call("0", "model.layers.0.attn", 0), call("1", "model.layers.1.attn", 1)] };
const named = { id: "t", calls: [call("0", "net.encoder.self", null), call("1", "net.decoder.0.cross", null)] };

test("calls are named by their layers where those tell them apart, else by what differs", () => {
  assert.deepEqual([callName(layers, layers.calls[1]), ownName(layers, layers.calls[1])], ["1", "1"]);
  assert.deepEqual(
    named.calls.map((one) => ownName(named, one)),
    ["encoder.self", "decoder.0.cross"],
  );
  assert.equal(callName(named, named.calls[0]), "net.encoder.self");
});

test("paths, the chosen call and the names of files", () => {
  assert.equal(callPath(layers, layers.calls[1]), "/api/traces/a%2Fb/calls/1");
  assert.equal(callOf(layers, { call: "1" }), layers.calls[1]);
  assert.equal(callOf(layers, { call: "9" }), layers.calls[0]);
  assert.deepEqual(fileParts(layers, layers.calls[1], [3]), ["layer1", "head3"]);
  assert.deepEqual(fileParts(layers, layers.calls[1], [0, 1, 2, 3]), ["layer1", ""]);
});
