// The page that `regard view` serves.

import { HttpSource } from "../data/sources.js";
import { start } from "./shell.js";

start(document.getElementById("regard"), new HttpSource(), { page: true });
