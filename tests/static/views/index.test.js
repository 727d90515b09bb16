import assert from "node:assert/strict";
import { test } from "node:test";
import { keyOfView, views } from "../../../src/regard/viewer/static/views/index.js";

test("every view describes itself", () => {
  assert.equal(new Set(views.map((view) => view.name)).size, views.length);
  assert.equal(new Set(views.map((_, at) => keyOfView(at))).size, views.length, "a key opens each");
  for (const { name, title, hint, needs, asks, unheld, mount } of views) {
    assert(/^[a-z]+$/.test(name) && title && hint && needs && typeof mount === "function", name);
    assert.equal(Boolean(asks), Boolean(unheld), `${name}: what it asks for, and the sentence where a file lacks it`);
  }
});
