// The table of views, in the order of their tabs: keys 1 to 9, then 0. Each describes itself in its own module;
// tabs, keys, the tour and the server's list (static_files.py) come from here.
import { generation } from "./generation/generation.js";
import { heads } from "./heads/heads.js";
import { lookup } from "./lookup/lookup.js";
import { map } from "./map/map.js";
import { model } from "./model/model.js";
import { neuron } from "./neuron/neuron.js";
import { picture } from "./picture/picture.js";
import { read } from "./read.js";
import { sound } from "./sound.js";
import { translate } from "./translate/translate.js";

/** @type {View[]} */
export const views = [lookup, translate, heads, model, neuron, map, generation, picture, sound, read];
