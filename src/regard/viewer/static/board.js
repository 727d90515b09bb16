// A canvas that fills its host: sharp, drawn at most once a frame, drawn again when the host's size changes.
import { el, fit, painter } from "./dom.js";

/** `draw(pen, width, height)`; `ask()` asks for the next frame. */
export function makeBoard(host, attributes, draw) {
  const node = el("canvas", attributes);
  host.append(node);
  const size = { width: 0, height: 0 };
  const ask = painter(() => {
    if (!size.width || !size.height) return;
    const pen = fit(node, size.width, size.height);
    pen.clearRect(0, 0, size.width, size.height);
    draw(pen, size.width, size.height);
  });
  const measure = () => {
    const { width, height } = host.getBoundingClientRect();
    Object.assign(size, { width: Math.floor(width), height: Math.floor(height) });
    ask();
  };
  const observer = new ResizeObserver(measure);
  observer.observe(host);
  measure();
  return {
    node,
    size,
    ask,
    close() {
      observer.disconnect();
      ask.cancel();
    },
  };
}

/** Where in an element a pointer is. */
export function place(event, node) {
  const box = node.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

/** The page's colours and type, as a canvas takes them. */
export function inks(host) {
  const style = getComputedStyle(host);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    paper: color("paper"),
    ink: color("ink"),
    soft: color("soft"),
    line: color("line"),
    accent: color("accent"),
    font: style.fontFamily,
  };
}
