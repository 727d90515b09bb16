// The views, in the order of their tabs: keys 1 to 9, then 0.
import { generation } from "./views/generation.js";
import { heads } from "./views/heads.js";
import { lookup } from "./views/lookup.js";
import { map } from "./views/map.js";
import { model } from "./views/model.js";
import { neuron } from "./views/neuron.js";
import { picture } from "./views/picture.js";
import { read } from "./views/read.js";
import { sound } from "./views/sound.js";
import { translate } from "./views/translate.js";

export const views = [lookup, translate, heads, model, neuron, map, generation, picture, sound, read];
