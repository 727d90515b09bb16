// The page that `regard view` serves.
import { start } from "./main.js";
import { HttpSource } from "./source.js";

start(document.getElementById("regard"), new HttpSource(), { page: true });
