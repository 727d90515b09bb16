// A number that a trace's file states is told from a proof that was made here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { verdict } from "../../../src/regard/viewer/static/shell/layout.js";

test("recorded is not proved", () => {
  assert.equal(verdict({ kept: true, word: "" }), "checked");
  assert.equal(verdict({ kept: true, word: "when this file was written" }), "checked (when this file was written)");
  assert.equal(verdict({ kept: null, word: "recorded" }), "recorded, not checked here");
  assert.equal(verdict({ kept: false, word: "recorded" }), "do not match the model (recorded)");
  assert.equal(verdict({ kept: null, word: "dropout 0.1" }), "not checked (dropout 0.1)");
  assert.equal(verdict(undefined), "not checked");
});
