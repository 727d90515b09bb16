import assert from "node:assert/strict";
import { test } from "node:test";
import { csvOf, nameOf, SvgContext } from "../../../src/regard/viewer/static/shell/export.js";

test("CSV as RFC 4180 has it, without formulas", () => {
  const table = [
    ["a,b", 'say "x"', null],
    [-1.5, "-1", "=SUM(A1)"],
  ];
  assert.equal(csvOf(table), '"a,b","say ""x""",\r\n-1.5,\'-1,\'=SUM(A1)\r\n');
});

test("names of files have letters that every system takes", () => {
  assert.equal(nameOf(["org/mini lm", "layer3", "", "../head7", "map"]), "regard-org-mini-lm-layer3-head7-map");
  assert.equal(nameOf(["../a b\u202e/\u2603:*?", "", ".."]), "regard-a-b");
  assert.equal(nameOf(["x".repeat(300)]).length, 150);
});

test("what is drawn is written as SVG, moved and escaped", () => {
  const pen = new SvgContext(100, 50);
  pen.save();
  pen.translate(10, 5);
  pen.fillStyle = "#123456";
  pen.fillRect(1, 2, 3, 4);
  pen.fillText('<a & "b">\u0000', 0, 0);
  pen.restore();
  pen.strokeRect(0, 0, 2, 2);
  const text = pen.text();
  assert(text.includes('<rect x="11" y="7" width="3" height="4" fill="#123456"/>'), text);
  assert(text.includes("&lt;a &amp; &quot;b&quot;&gt;�</text>"), text);
  assert(text.includes('d="M0 0h2v2h-2Z"'), text);
});

test("clips are closed where they were opened", () => {
  const pen = new SvgContext(10, 10);
  pen.save();
  pen.rect(0, 0, 5, 5);
  pen.clip();
  pen.restore();
  pen.rect(0, 0, 5, 5);
  pen.clip();
  const text = pen.text();
  assert.equal(text.split("<g ").length, text.split("</g>").length);
});
