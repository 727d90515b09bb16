// Weights over a picture's grid: the picture is dark where the model did not look. Without a picture, cells of colour.
import { context2d } from "./canvas.js";

/** The rectangle in which a picture of this shape fits. */
export function within(width, height, ratio) {
  const wide = Math.min(width, height * ratio);
  return { x: (width - wide) / 2, y: (height - wide / ratio) / 2, width: wide, height: wide / ratio };
}

/** Draw into `box` of `pen`. `weights` are h·w numbers, rows first; `image` may be null; `smooth` blends the cells. */
export function drawOver(pen, box, { image, weights, grid: [rows, columns], smooth, palette }) {
  const most = Math.max(...weights) || 1;
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [columns, rows];
  const small = context2d(cells);
  const bytes = small.createImageData(columns, rows);
  weights.forEach((weight, i) => {
    const share = weight / most;
    const at = 3 * Math.round(255 * Math.sqrt(share));
    bytes.data.set(
      image ? [0, 0, 0, Math.round(215 * (1 - Math.sqrt(share)))] : [...palette.bytes.slice(at, at + 3), 255],
      4 * i,
    );
  });
  small.putImageData(bytes, 0, 0);
  const scale = 2;
  const whole = document.createElement("canvas");
  [whole.width, whole.height] = [Math.round(box.width * scale), Math.round(box.height * scale)];
  const brush = context2d(whole);
  if (image) brush.drawImage(image, 0, 0, whole.width, whole.height);
  brush.imageSmoothingEnabled = Boolean(smooth);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(cells, 0, 0, whole.width, whole.height);
  pen.drawImage(whole, box.x, box.y, box.width, box.height);
}
