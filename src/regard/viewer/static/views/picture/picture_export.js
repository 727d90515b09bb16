// The Picture view as a file: the picture with its weights, and the weights as a table.
import { inks, onPaper } from "../../draw/canvas.js";
import { drawOver, within } from "../../draw/image_overlay.js";

export function captionPicture(view) {
  const { shown } = view;
  const [width, height] = [640, 480];
  const { paper, ink, font } = inks(view.stage);
  const draw = (pen) => {
    if (!shown) return;
    const inner = within(width - 40, height - 60, view.ratio(shown.grid));
    drawOver(
      pen,
      { ...inner, x: inner.x + 20, y: inner.y + 20 },
      { image: view.image, ...shown, smooth: view.settings.smooth, palette: view.context.palette },
    );
    Object.assign(pen, { fillStyle: ink, font: `14px ${font}`, textAlign: "center" });
    pen.fillText(shown.name, width / 2, height - 14);
  };
  return onPaper(width, height, paper, draw);
}

export function captionTable(view) {
  const all = view.answer
    ? view.answer.words.map((word, at) => [word, view.answer.weights[at]])
    : view.shown
      ? [[view.shown.name, view.shown.weights]]
      : [];
  const { grid } = view.shown ?? { grid: [0, 0] };
  const cells = Array.from(
    { length: grid[0] * grid[1] },
    (_, i) => `row ${Math.floor(i / grid[1]) + 1} column ${(i % grid[1]) + 1}`,
  );
  return [["", ...cells], ...all.map(([name, weights]) => [name, ...weights])];
}
