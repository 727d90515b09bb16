import assert from "node:assert/strict";
import { test } from "node:test";
import { LARGEST, MapCamera } from "../../../src/regard/viewer/static/views/one_head_map.js";
import { close } from "../expected.js";

const panel = { area: { x: 100, y: 50, width: 600, height: 300 }, call: { queries: 1000, keys: 2000 } };

function camera() {
  const made = new MapCamera({ first: () => panel, moved() {}, rested() {}, pointed() {} });
  return made;
}

/** The weight under a pixel. */
function under({ x, y, scale }, px, py) {
  const { area } = panel;
  return [x + (px - area.x - area.width / 2) / scale, y + (py - area.y - area.height / 2) / scale];
}

test("at first the whole head is in the window, its corner in the corner", () => {
  const one = camera();
  assert.equal(one.whole, 0.3); // min(600 / 2000, 300 / 1000)
  close(under(one.now, 100, 50), [0, 0], 1e-9);
});

test("zooming keeps what is under the pointer", () => {
  const one = camera();
  one.zoom(4, panel, 400, 200);
  const before = under(one.now, 250, 120);
  one.zoom(2.5, panel, 250, 120);
  close(under(one.now, 250, 120), before, 1e-9);
  close([one.now.scale], [0.3 * 4 * 2.5], 1e-9);
  one.close();
});

test("the camera stays inside the head and between its scales", () => {
  const one = camera();
  assert.deepEqual(one.inside({ x: -5, y: 5000, scale: 1000 }), { x: 0, y: 1000, scale: LARGEST });
  assert.equal(one.inside({ x: 0, y: 0, scale: 1e-9 }).scale, 0.3);
});

test("moving by pixels moves by as many weights as they show", () => {
  const one = camera();
  one.move({ x: 500, y: 500, scale: 2 });
  one.by(10, -4);
  close([one.now.x, one.now.y], [505, 498], 1e-9);
  one.set({ x: null, y: null, scale: null });
  assert.equal(one.now.scale, 2, "while it is moved a link changes nothing");
  one.close();
});
