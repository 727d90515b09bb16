// What tests and benchmarks ask of the page, as `window.regard`.
import { views } from "../views/index.js";
import { figureOf, linkOf } from "./figure_export.js";
import { svgOf } from "./file_export.js";

/** For tests and benchmarks: `regard.drawn()` is what the view drew, as numbers. */
export function testHooks(shell) {
  return {
    state: shell.state,
    source: shell.source,
    views: views.map((view) => view.name),
    drawn: () => shell.view?.drawn?.() ?? null,
    picture: async () => svgOf(await shell.view?.picture?.()),
    figure: () => shell.theme.onWhite(async () => svgOf(await figureOf(shell))),
    link: () => linkOf(shell),
    table: () => shell.view?.table?.(),
    /** Milliseconds between the frames of the next so many. */
    frames: (count) =>
      new Promise((resolve) => {
        const times = [];
        const step = (now) => {
          times.push(now);
          if (times.length <= count) requestAnimationFrame(step);
          else resolve(times.slice(1).map((time, at) => time - times[at]));
        };
        requestAnimationFrame(step);
      }),
  };
}
