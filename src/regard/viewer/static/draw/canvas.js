// A canvas that fills its host: sharp, drawn at most once a frame, drawn again when the host's size changes.
import { el } from "./elements.js";

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

/** Words at a place. The style stays: fillStyle, font, textAlign, textBaseline. */
export function write(pen, text, x, y, style = {}) {
  Object.assign(pen, style).fillText(text, x, y);
}

/** Text that begins at (x, y) and is turned about that point. */
export function rotatedText(pen, text, x, y, angle) {
  pen.save();
  pen.translate(x, y);
  pen.rotate(angle);
  pen.fillText(text, 0, 0);
  pen.restore();
}

/** What is drawn within a rectangle only. */
export function clipped(pen, { x, y, width, height }, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  draw();
  pen.restore();
}

/** The drawing context of a new canvas. */
export function sheet(width, height) {
  return context2d(el("canvas", { width, height }));
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

/** A canvas that stays while a long list scrolls; `draw()` is called before the next frame where it must be drawn anew.
 *
 * @param {{label: string, draw: () => void, scrolled: () => void}} options
 */
export function scrollingCanvas({ label, draw, scrolled }) {
  const paint = painter(draw);
  const canvas = el("canvas");
  const spacer = el("div.spacer"); // as high as the whole list
  const pane = el("div.pane", canvas);
  const attributes = { tabIndex: 0, role: "application", "aria-label": label, onscroll: scrolled };
  const box = el("div.drawing.scrolling", attributes, pane, spacer);
  const observer = new ResizeObserver(() => paint());
  observer.observe(box);
  const close = () => {
    paint.cancel();
    observer.disconnect();
  };
  return { box, pane, canvas, spacer, paint, close };
}

/** @param {Pen} pen @param {number[]} places x, y, x, y, … */
export function polyline(pen, places) {
  pen.beginPath();
  for (let i = 0; i < places.length; i += 2)
    i ? pen.lineTo(places[i], places[i + 1]) : pen.moveTo(places[0], places[1]);
  pen.stroke();
}

/** A plot's places: of numbers on the canvas, back from there, and lines with numbers at round ones.
 *
 * @param {{width: number, height: number, margin: {left: number, right: number, top: number, bottom: number},
 *   x: number[], y: number[]}} frame
 */
export function makeAxes({ width, height, margin, x: [x0, x1], y: [y0, y1] }) {
  const [wide, high] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
  const X = (x) => margin.left + ((x - x0) / (x1 - x0 || 1)) * wide;
  const Y = (y) => height - margin.bottom - ((y - y0) / (y1 - y0 || 1)) * high;
  return {
    X,
    Y,
    at: (px, py) => [
      x0 + ((px - margin.left) / wide) * (x1 - x0),
      y0 + ((height - margin.bottom - py) / high) * (y1 - y0),
    ],
    /** `across` also draws lines for the numbers below; `below` are those, where they are not the round ones. */
    grid(pen, { line, soft }, { across = true, below = ticks(x0, x1), words = (x) => String(x) } = {}) {
      Object.assign(pen, { strokeStyle: line, fillStyle: soft, lineWidth: 1, textAlign: "center" });
      for (const x of below) {
        if (across) polyline(pen, [X(x), margin.top, X(x), height - margin.bottom]);
        pen.fillText(words(x), X(x), height - margin.bottom + 18);
      }
      pen.textAlign = "right";
      for (const y of ticks(y0, y1)) {
        polyline(pen, [margin.left, Y(y), width - margin.right, Y(y)]);
        pen.fillText(words(y), margin.left - 8, Y(y) + 4);
      }
    },
  };
}

/** Round numbers from one to another, about five of them. @param {number} from @param {number} to */
export function ticks(from, to) {
  const step = roundStep((to - from) / 5);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
}

/** The smallest of 1, 2, 5, 10, 20, 50 … (and 0.5, 0.2 …) that is at least `least`. @param {number} least */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5].map((x) => x * power).find((x) => x >= least) ?? 10 * power;
}

/** Text in lines of about so many letters. */
export function textLines(text, most) {
  const all = [""];
  for (const word of text.split(" ")) {
    const longer = all[all.length - 1] ? `${all[all.length - 1]} ${word}` : word;
    if (longer.length <= most || longer === word) all[all.length - 1] = longer;
    else all.push(word);
  }
  return all;
}
