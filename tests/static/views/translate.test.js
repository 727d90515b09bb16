import assert from "node:assert/strict";
import { test } from "node:test";
import { copyNote, copySummary, gathered } from "../../../src/regard/viewer/static/views/translate.js";
import { close } from "../expected.js";

const answer = {
  source: ["▁my", "▁sis", "ter", "</s>"],
  source_words: [0, 1, 1, 2],
  target: ["▁meine", "▁Schw", "ester"],
  target_words: [0, 1, 1],
  weights: [
    [0.7, 0.1, 0.1, 0.1],
    [0.1, 0.6, 0.2, 0.1],
    [0.0, 0.3, 0.5, 0.2],
  ],
};

test("pieces are gathered into words: to a word the sum, from a word the mean", () => {
  const table = gathered(answer, "word");
  assert.deepEqual(
    [table.rows, table.columns],
    [
      ["meine", "Schwester"],
      ["my", "sister", "</s>"],
    ],
  );
  close(table.weights.flat(), [0.7, 0.2, 0.1, 0.05, 0.8, 0.15]);
});

test("by token nothing is gathered", () => {
  assert.deepEqual(gathered(answer, "token").weights, answer.weights);
});

test("words that are copied: the mean over their pieces, and the source has them", () => {
  const table = gathered({ ...answer, generation: [0.9, 0.2, 0.1] }, "word");
  close(table.copies, [0.1, 0.85]);
  assert.deepEqual([copyNote(table, 0), copyNote(table, 1)], ["", ""]); // the source has neither word
  assert.equal(copyNote({ ...table, rows: ["my", "sister"] }, 0), "");
  assert.equal(copyNote({ ...table, rows: ["my", "sister"] }, 1), "copied with probability 0.85");
  assert.equal(gathered(answer, "word").copies, null);
  assert.equal(copySummary(gathered(answer, "word")), null);
});
