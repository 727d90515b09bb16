// What is bundled for the site (tools/site_viewer.py): the page, with models that run in the browser.
import { start } from "../shell/shell.js";
import { siteSource } from "./site_source.js";

start(document.getElementById("regard"), siteSource(), { page: true });
