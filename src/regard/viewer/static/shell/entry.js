// What is bundled (bundle/page.js): the page of a server or of a single file, and the widget of a notebook.
import { FileSource, HttpSource, WidgetSource } from "../data/sources.js";
import { start } from "./shell.js";

const SOURCES = {
  server: () => new HttpSource(),
  file: () => new FileSource(JSON.parse(document.getElementById("responses")?.textContent ?? "")),
};
const place = document.getElementById("regard");
const source = SOURCES[place?.dataset.source ?? ""];
if (source) start(place, source(), { page: true });

/** The widget, as anywidget wants it. */
export default {
  async render({ model, el: cell }) {
    const saved = model.get?.("saved");
    const root = document.createElement("div");
    root.className = "regard-widget";
    cell.append(root);
    return start(root, new WidgetSource(model, saved?.json ? new FileSource(saved) : null));
  },
};
