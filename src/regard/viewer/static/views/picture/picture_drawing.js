// The drawing of the Picture view.
import { inks } from "../../draw/canvas.js";
import { drawOver } from "../../draw/image_overlay.js";
import { textLines } from "../../draw/line_breaks.js";

const NOTHING =
  "Nothing to look at yet: a captioner is not installed here, and this trace has no picture. " +
  "A trace of a vision model has one: its calls' keys are the cells of a grid.";

/** The picture with its weights, and a frame around the cell that is pointed at or chosen. `view` is the Picture view. */
export function drawPicture(view, pen, width, height) {
  const { soft, accent, font } = inks(view.stage);
  const { shown } = view;
  if (!shown) {
    Object.assign(pen, { fillStyle: soft, font: `14px ${font}`, textAlign: "center" });
    const text = view.drop ? "Drop a picture here." : view.call ? "" : NOTHING;
    textLines(text, 60).forEach((line, i) => pen.fillText(line, width / 2, height / 2 + 22 * i));
    return;
  }
  const box = view.box(width, height, shown);
  drawOver(pen, box, { image: view.image, ...shown, smooth: view.settings.smooth, palette: view.context.palette });
  const cell =
    view.hovered ?? (!view.answer && view.settings.query >= view.special ? view.settings.query - view.special : null);
  if (cell === null) return;
  const [rows, columns] = shown.grid;
  Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
  pen.strokeRect(
    box.x + ((cell % columns) * box.width) / columns,
    box.y + (Math.floor(cell / columns) * box.height) / rows,
    box.width / columns,
    box.height / rows,
  );
}
