// Canvases that stay in view while a long list is scrolled under them.
import { painter } from "./canvas.js";
import { el } from "./dom.js";

/** `layers` canvases, one over the other; `draw()` is called before the next frame where they must be drawn anew.
 *
 * @param {{label: string, layers?: number, draw: () => void, scrolled: () => void}} options
 */
export function scrollingCanvas({ label, layers = 1, draw, scrolled }) {
  const paint = painter(draw);
  const canvases = Array.from({ length: layers }, () => el("canvas"));
  const spacer = el("div.spacer"); // as high as the whole list
  const pane = el("div.pane", {}, ...canvases);
  const attributes = { tabIndex: 0, role: "application", "aria-label": label, onscroll: scrolled };
  const box = el("div.drawing.scrolling", attributes, pane, spacer);
  const observer = new ResizeObserver(() => paint());
  observer.observe(box);
  const close = () => {
    paint.cancel();
    observer.disconnect();
  };
  return { box, pane, canvases, spacer, paint, close };
}
