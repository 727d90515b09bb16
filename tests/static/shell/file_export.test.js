import assert from "node:assert/strict";
import { test } from "node:test";
import { csvOf, nameOf } from "../../../src/regard/viewer/static/shell/export.js";

test("CSV as RFC 4180 has it, without formulas", () => {
  const table = [
    ["a,b", 'say "x"', null],
    [-1.5, "-1", "=SUM(A1)"],
  ];
  assert.equal(csvOf(table), '"a,b","say ""x""",\r\n-1.5,\'-1,\'=SUM(A1)\r\n');
});

test("names of files have letters that every system takes", () => {
  assert.equal(nameOf(["org/mini lm", "layer3", "", "../head7", "map"]), "regard-org-mini-lm-layer3-head7-map");
  assert.equal(nameOf(["x".repeat(300)]).length, 150);
});
