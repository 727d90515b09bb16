import assert from "node:assert/strict";
import { test } from "node:test";
import {
  lineOpacity,
  linksFrom,
  linksTo,
  markAt,
  muted,
  mutedQueries,
  surplus,
  visible,
} from "../../../src/regard/viewer/static/views/heads_links.js";
import { close } from "../expected.js";

const side = { labels: ["a", "b", "c"], special: [true, false, false] };
const links = {
  from: () => ({ keys: [0, 1, 2], weights: [0.6, 0.3, 0.1] }),
  to: () => Float32Array.from([0.5, 0.25, 0.0001]),
};
const scene = { active: [0], links, muted: new Set(), querySide: side, keySide: side };

test("muted keys are left out, and the rest are drawn as their weights", () => {
  const left = muted(side, ["first"]);
  assert.deepEqual([...left], [0]);
  const shown = linksFrom({ ...scene, muted: left }, 0);
  assert.deepEqual(
    shown.map((link) => link.key),
    [1, 2],
  );
  close(
    shown.map((link) => link.alpha),
    [0.3, 0.1],
  );
});

test("what stands out is what is left of a weight without its habit", () => {
  close(
    [surplus({ weight: 0.7, habit: 0.6, alpha: 0.7 }), surplus({ weight: 0.7, habit: null, alpha: 0.5 })],
    [0.1, 0.5],
  );
});

test("squares and lines are found where they were drawn", () => {
  const marks = [
    { link: "square", box: [100, 0, 10, 20] },
    { link: "line", line: [0, 10, 90, 50] },
  ];
  assert.equal(markAt(marks, 105, 5), "square");
  assert.equal(markAt(marks, 45, 31), "line"); // half way up, in the middle
  assert.equal(markAt(marks, 45, 45), null);
});

test("links to a key", () => {
  assert.deepEqual(
    linksTo({ ...scene, top: 0, height: 100 }, 0).map((link) => [link.query, link.weight]),
    [
      [0, 0.5],
      [1, 0.25],
    ],
  );
});

test("links from muted queries are left out where the key is of the same text", () => {
  const text = { ...side, name: "text" };
  const left = mutedQueries(text, text, ["special"]);
  assert.deepEqual([...left], [0]);
  assert.deepEqual([...mutedQueries(text, { ...side, name: "other" }, ["special"])], []);
  assert.deepEqual(
    linksTo({ ...scene, top: 0, height: 100, mutedQueries: left }, 0).map((link) => link.query),
    [1],
  );
});

test("weights that are on their way are no missing links", () => {
  const waiting = { ...scene, waiting: false, links: { ...links, from: () => null } };
  assert.deepEqual(linksFrom(waiting, 0), []);
  assert.equal(waiting.waiting, true);
});

test("queries in view", () => {
  assert.deepEqual(visible({ top: 22, height: 44, row: 22, querySide: { labels: Array(10) } }), [1, 2]);
});

test("a stronger weight is a stronger line, and a faint one is stronger on a dark page", () => {
  const weights = [0.01, 0.03, 0.1, 0.3, 1];
  for (const chosen of [true, false]) {
    const [light, dark] = ["light", "dark"].map((theme) => weights.map((x) => lineOpacity({ theme, chosen }, x)));
    for (const shades of [light, dark]) {
      assert.deepEqual(
        shades,
        shades.toSorted((a, b) => a - b),
      );
      assert.equal(shades.at(-1), 1);
    }
    assert(weights.every((weight, at) => weight === 1 || dark[at] > light[at]));
  }
});
