// The page that `regard view` serves.

import { HttpSource } from "../data/http_source.js";
import { start } from "./shell.js";

start(document.getElementById("regard"), new HttpSource(), { page: true });
