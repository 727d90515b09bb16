import assert from "node:assert/strict";
import { test } from "node:test";
import { gather, labelAt, plain, sideOf, unknownNote } from "../../../src/regard/viewer/static/data/tokens.js";
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
