// What is shown, as a file: SVG, PNG, CSV.
//
// A view's `picture()` is {width, height, draw(ctx)}, drawn anew for either kind of file, or {svg} or {canvas}.
import { context2d } from "../draw/canvas.js";
import { el } from "../draw/dom.js";
import { SvgContext } from "../draw/svg_context.js";

const SHARP = 2; // pixels of a PNG per pixel of the page

/** SVG text of a picture. */
export function svgOf(picture) {
  if (picture.svg) return picture.svg;
  const { width, height, draw } = picture.canvas ? boxed(picture.canvas) : picture;
  const ctx = new SvgContext(width, height);
  draw(ctx);
  return ctx.text();
}

/** A PNG blob of a picture. */
export async function pngOf(picture) {
  const canvas = picture.canvas ?? (picture.svg ? await painted(picture.svg) : drawn(picture));
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Rows of cells → CSV as RFC 4180 has it. A cell that a spreadsheet would run as a formula gets a quote before it. */
export function csvOf(table) {
  const cell = (value) => {
    let text = String(value ?? "");
    if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return table.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** ["minilm", "layer3", "head7", "map"] → "regard-minilm-layer3-head7-map": letters that every system takes in a name. */
export function nameOf(parts) {
  const safe = parts.filter(Boolean).map((part) => part.replace(/[^A-Za-z0-9._]+/g, "-").replace(/^[-.]+|[-.]+$/g, ""));
  return ["regard", ...safe.filter(Boolean)].join("-").slice(0, 150);
}

/** Hand a file to the browser. */
export function save(name, blob) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function drawn({ width, height, draw }) {
  const canvas = el("canvas", { width: Math.ceil(width * SHARP), height: Math.ceil(height * SHARP) });
  const ctx = context2d(canvas);
  ctx.scale(SHARP, SHARP);
  draw(ctx);
  return canvas;
}

function boxed(canvas) {
  const [width, height] = [canvas.width / SHARP, canvas.height / SHARP];
  return { width, height, draw: (ctx) => ctx.drawImage(canvas, 0, 0, width, height) };
}

async function painted(svg) {
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = url;
  await image.decode();
  URL.revokeObjectURL(url);
  return drawn({ width: image.width, height: image.height, draw: (ctx) => ctx.drawImage(image, 0, 0) });
}
