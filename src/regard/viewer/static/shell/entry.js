// What is bundled (bundle/page.js): the page of a server or of a single file, and the widget of a notebook.
import { FileSource, HttpSource, SavedSource, WidgetSource } from "../data/sources.js";
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
    const kernel = new WidgetSource(model);
    const saved = model.get?.("saved");
    const source = saved?.json ? new SavedSource(new FileSource(saved), kernel) : kernel;
    const root = document.createElement("div");
    root.className = "regard-widget";
    cell.append(root);
    const end = await start(root, source);
    return () => {
      end();
      source.close();
    };
  },
};
