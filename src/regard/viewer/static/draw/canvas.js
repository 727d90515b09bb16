// A canvas that fills its host: sharp, drawn at most once a frame, drawn again when the host's size changes.
import { el } from "./dom.js";

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
    Object.assign(size, { width: host.clientWidth, height: host.clientHeight });
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
  const zoom = node.currentCSSZoom ?? 1; // of a page in large type
  return { x: (event.clientX - box.left) / zoom, y: (event.clientY - box.top) / zoom };
}

/** The drawing context of a canvas. @param {HTMLCanvasElement} canvas @returns {Pen} */
export function context2d(canvas) {
  return /** @type {Pen} */ (canvas.getContext("2d"));
}

/** Give a canvas the size of its box, sharp on any screen; returns its context scaled to CSS pixels. */
export function fit(canvas, width, height) {
  const scale = Math.min((window.devicePixelRatio || 1) * (canvas.currentCSSZoom ?? 1), 3);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = context2d(canvas);
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  return ctx;
}

/** Call `draw` once before the next frame, however often it is asked for. */
export function painter(draw) {
  let frame = 0;
  const ask = () => {
    if (!frame)
      frame = requestAnimationFrame(() => {
        frame = 0;
        draw();
      });
  };
  const cancel = () => {
    cancelAnimationFrame(frame);
    frame = 0;
  };
  return Object.assign(ask, { cancel });
}

/** The page's colours and letters, as they are where `node` is. */
export function inks(node) {
  const style = getComputedStyle(node);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    ink: of("--ink"),
    soft: of("--soft"),
    paper: of("--paper"),
    accent: of("--accent"),
    onAccent: of("--on-accent"),
    faint: of("--faint"),
    line: of("--line"),
    font: of("--sans"),
  };
}

/** A label that fits: cut at the end, with "…", where it is wider. */
export function shortened(ctx, text, width) {
  if (text.length * 20 < width) return text; // no letter is wider: need not be measured
  const whole = ctx.measureText(text).width;
  if (whole <= width) return text;
  let end = Math.max(1, Math.floor((text.length * width) / whole));
  while (end > 1 && ctx.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return `${text.slice(0, end)}…`;
}

/** Text that begins at (x, y) and is turned about that point. */
export function rotatedText(pen, text, x, y, angle) {
  pen.save();
  pen.translate(x, y);
  pen.rotate(angle);
  pen.fillText(text, 0, 0);
  pen.restore();
}

/** A picture for export, on a ground of the page's colour. @param {(pen: Pen) => void} draw */
export function onPaper(width, height, paper, draw) {
  return {
    width,
    height,
    /** @param {Pen} pen */
    draw(pen) {
      pen.fillStyle = paper;
      pen.fillRect(0, 0, width, height);
      draw(pen);
    },
  };
}
