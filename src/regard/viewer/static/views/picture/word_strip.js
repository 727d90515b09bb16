// The words of the Picture view: one small picture per word, as in the paper; or the tokens before the cells.
import { context2d } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { drawOver, within } from "../../draw/image_overlay.js";

/** A button for each word. `view` is the Picture view. */
export function wordButtons(view) {
  const { answer, call } = view;
  const { word, query } = view.settings;
  const words = answer?.words ?? (call ? Array.from({ length: view.special }, (_, i) => view.nameOf(i)) : []);
  const chosen = answer ? Math.min(word, words.length - 1) : query;
  return words.map((name, at) =>
    el(
      "button.strip-word",
      {
        type: "button",
        "aria-pressed": String(at === chosen),
        onclick: () => view.set(answer ? { word: at } : { query: at }),
      },
      ...(answer ? [smallPicture(view, at)] : []),
      name,
    ),
  );
}

/** The picture, and where the model looked for one word. */
function smallPicture(view, at) {
  const { weights, grid } = view.answer;
  const { width, height } = within(96, 96, view.ratio(grid));
  const canvas = el("canvas", { width, height, "aria-hidden": "true" });
  const { image, settings, context } = view;
  const over = { image, weights: weights[at], grid, smooth: settings.smooth, palette: context.palette };
  drawOver(context2d(canvas), { x: 0, y: 0, width, height }, over);
  return canvas;
}
