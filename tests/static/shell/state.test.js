import assert from "node:assert/strict";
import { test } from "node:test";
import { decode, encode } from "../../../src/regard/viewer/static/shell/state.js";

test("a state survives its link", () => {
  const states = [
    { view: "heads", trace: "a b/c:1", heads: [0, 3], lines: "all", shift: -4 },
    { text: "é & = # % ü 🙂 [0]", pins: ["q3", "k10"], lookup: { query: "1, 2", rows: [] } },
    { trace: "12", call: "0", level: "word" },
    { a: "12", b: 12, c: "true", d: true, e: "x&y=z#%", f: [1, "q3"], g: "plain words", h: "1e5", i: "" },
  ];
  for (const state of states) assert.deepEqual(decode(`#${encode(state)}`), state);
});

test("links are short, and hold nothing at which a chat ends them", () => {
  assert.equal(encode({ view: "heads", heads: [0, 3], none: null }), "view=heads&heads=%5B0,3%5D");
  const odd = { sentence: "It’s “so” (he said): [yes], 'no' <b>*!* ~ the end.", pins: ["q3"], lookup: { query: '"' } };
  assert(/^[A-Za-z0-9_&=%.,:/-]*[A-Za-z0-9]$/.test(encode(odd)), encode(odd));
  assert.deepEqual(decode(encode(odd)), odd);
});

test("what cannot be read in a link, or is of another kind, is left out", () => {
  assert.equal(decode("#a=%E0%A4%A&b=1&&=&c").b, 1);
  assert.deepEqual(decode('#head=-1&entry=1.5&heads=3&level=odd&lines=[1]&lookup=[1]&view={"a":1}'), {});
});
