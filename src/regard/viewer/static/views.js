// The views, in the order of their tabs: keys 1 to 9, then 0.
import { heads } from "./views/heads.js";

export const views = [heads];
