import assert from "node:assert/strict";
import { test } from "node:test";
import {
  callName,
  callOf,
  callPath,
  fileParts,
  gather,
  labelAt,
  ownName,
  plain,
  sideOf,
  unknownNote,
} from "../../../src/regard/viewer/static/data/tokens.js";
import { close } from "../expected.js";

const call = { query_side: "text", key_side: "text", queries: 5, keys: 5 };
const trace = {
  sides: { text: ["[CLS]", "play", "##ing", "chess", "[SEP]"] },
  side_words: { text: [null, 0, 0, 1, null] },
  side_special: { text: [true, false, false, false, true] },
};

test("tokens as people read them", () => {
  const tokens = ["##ing", "▁the", "Ġthe", "Ċ", "▁", "", "#"];
  assert.deepEqual(tokens.map(plain), ["ing", "the", "the", "↵", "␣", "∅", "#"]);
});

test("pieces of one word are one label", () => {
  const side = sideOf(trace, call, "key", "word");
  assert.deepEqual(side.labels, ["[CLS]", "playing", "chess", "[SEP]"]);
  assert.deepEqual(side.groups, [[0], [1, 2], [3], [4]]);
  assert.deepEqual(side.special, [true, false, false, true]);
  assert.deepEqual(
    [0, 1, 2, 3, 4].map((at) => labelAt(side, at)),
    [0, 1, 1, 2, 3],
  );
});

test("to a word the sum, from a word the mean (Clark et al. 2019)", () => {
  const rows = [
    [0.1, 0.2, 0.3, 0.4, 0],
    [0.5, 0.1, 0.1, 0.1, 0.2],
  ];
  close(gather(rows, [[0], [1, 2], [3], [4]]), [0.3, 0.35, 0.25, 0.1]);
});

test("the mark of an unknown word is explained where there is one", () => {
  assert(unknownNote(["a", "<unk>"]).startsWith("<unk> stands for a word"));
  assert(unknownNote(["[UNK]"]).startsWith("[UNK] stands"));
  assert.equal(unknownNote(["unk", "a"]), "");
});

const made = (id, name, layer) => ({ id, name, layer, heads: 4 });
const layers = { id: "a/b", calls: [made("0", "model.layers.0.attn", 0), made("1", "model.layers.1.attn", 1)] };
const named = { id: "t", calls: [made("0", "net.encoder.self", null), made("1", "net.decoder.0.cross", null)] };

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
