// The table of views, in the order of their keys: 1 to 9, 0, then the first letter. Each describes itself in its own module;
// menus, keys, the tour and the server's list (viewer/responses.py) come from here.

import { effects } from "./effects.js";
import { generation } from "./generation.js";
import { heads } from "./heads.js";
import { inside } from "./inside.js";
import { lookup } from "./lookup.js";
import { map } from "./map.js";
import { model } from "./model.js";
import { neuron } from "./neuron.js";
import { picture } from "./picture.js";
import { read } from "./read.js";
import { sound } from "./sound.js";
import { translate } from "./translate.js";

/** @type {View[]} */
export const views = [lookup, translate, heads, model, neuron, map, generation, picture, sound, read, inside, effects];

/** The same as the page groups them. @type {Record<string, View[]>} */
export const groups = {
  Learn: [lookup, inside],
  Read: [heads, model, neuron, map, read, effects],
  Write: [translate, generation],
  "See & hear": [picture, sound],
};

/** The key that opens a view: 1 to 9, 0, then its own, or the first letter of its name. @param {number} at */
export function keyOfView(at) {
  return at < 10 ? String((at + 1) % 10) : (views[at].key ?? views[at].name[0]);
}
