// A drawing context that writes SVG: the part of the canvas's own that our views use, so one `draw(ctx)` is both.
import { context2d } from "./canvas.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const ANCHORS = { left: "start", start: "start", center: "middle", right: "end", end: "end" };
const BASELINES = { top: "text-before-edge", middle: "central", alphabetic: "alphabetic", bottom: "text-after-edge" };

function safe(text) {
  // Tokens may hold characters that XML does not allow.
  return (
    String(text)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: the characters to replace
      .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "�")
      .replace(/[&<>"]/g, (c) => ESCAPES[c])
  );
}

/** The canvas that measures text. */
let ruler = null;

const n = (x) => String(Math.round(x * 100) / 100);

export class SvgContext {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.parts = [];
    this.stack = [];
    this.clips = 0;
    this.open = 0;
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "12px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.lineCap = "butt";
    this.at = [0, 0];
    this.turn = 0;
    this.path = "";
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, lineCap, at, turn, open } =
      this;
    this.stack.push({
      fillStyle,
      strokeStyle,
      lineWidth,
      globalAlpha,
      font,
      textAlign,
      textBaseline,
      lineCap,
      at,
      turn,
      open,
    });
  }

  restore() {
    const before = this.stack.pop();
    if (!before) return;
    for (; this.open > before.open; this.open--) this.parts.push("</g>");
    Object.assign(this, before);
  }

  translate(x, y) {
    this.at = [this.at[0] + x, this.at[1] + y];
  }

  /** Of words only, about where `translate` went. */
  rotate(angle) {
    this.turn += angle;
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${this.xy(x, y)}`;
  }

  lineTo(x, y) {
    this.path += `L${this.xy(x, y)}`;
  }

  bezierCurveTo(a, b, c, d, x, y) {
    this.path += `C${this.xy(a, b)} ${this.xy(c, d)} ${this.xy(x, y)}`;
  }

  closePath() {
    this.path += "Z";
  }

  rect(x, y, w, h) {
    this.path += `M${this.xy(x, y)}h${n(w)}v${n(h)}h${n(-w)}Z`;
  }

  roundRect(x, y, w, h) {
    this.rect(x, y, w, h);
  }

  arc(x, y, r) {
    // Whole circles only: the only arcs that are drawn.
    this.path += `M${this.xy(x - r, y)}a${n(r)} ${n(r)} 0 1 0 ${n(2 * r)} 0a${n(r)} ${n(r)} 0 1 0 ${n(-2 * r)} 0Z`;
  }

  clip() {
    this.clips += 1;
    const id = `c${this.clips}`;
    this.parts.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    this.open += 1;
  }

  stroke() {
    this.parts.push(
      `<path d="${this.path}" fill="none" stroke="${safe(this.strokeStyle)}" stroke-width="${n(this.lineWidth)}"` +
        ` stroke-linecap="${this.lineCap}"${this.alpha()}/>`,
    );
  }

  fill() {
    this.parts.push(`<path d="${this.path}" fill="${safe(this.fillStyle)}"${this.alpha()}/>`);
  }

  fillRect(x, y, w, h) {
    this.parts.push(
      `<rect x="${n(x + this.at[0])}" y="${n(y + this.at[1])}" width="${n(w)}" height="${n(h)}"` +
        ` fill="${safe(this.fillStyle)}"${this.alpha()}/>`,
    );
  }

  strokeRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.stroke();
  }

  clearRect() {}

  fillText(text, x, y) {
    const found = /(?:(\d{3}|bold)\s+)?([\d.]+)px\s+(.*)/.exec(this.font) ?? [null, null, "12", "sans-serif"];
    const turned = this.turn
      ? ` transform="rotate(${n((this.turn * 180) / Math.PI)} ${this.at.map(n).join(" ")})"`
      : "";
    const weight = found[1] ? ` font-weight="${found[1]}"` : "";
    this.parts.push(
      `<text x="${n(x + this.at[0])}" y="${n(y + this.at[1])}" font-family="${safe(found[3].replace(/"/g, "'"))}"` +
        ` font-size="${found[2]}"${weight} text-anchor="${ANCHORS[this.textAlign]}"` +
        ` dominant-baseline="${BASELINES[this.textBaseline]}" fill="${safe(this.fillStyle)}" xml:space="preserve"` +
        `${turned}${this.alpha()}>${safe(text)}</text>`,
    );
  }

  measureText(text) {
    ruler ??= context2d(document.createElement("canvas"));
    ruler.font = this.font;
    return ruler.measureText(text);
  }

  /** Only whole canvases: drawImage(canvas, x, y, w, h). */
  drawImage(canvas, x, y, w, h) {
    this.parts.push(
      `<image x="${n(x + this.at[0])}" y="${n(y + this.at[1])}" width="${n(w)}" height="${n(h)}"` +
        ` style="image-rendering:pixelated" preserveAspectRatio="none" href="${canvas.toDataURL("image/png")}"/>`,
    );
  }

  alpha() {
    return this.globalAlpha < 1 ? ` opacity="${Math.round(this.globalAlpha * 1e4) / 1e4}"` : "";
  }

  xy(x, y) {
    return `${n(x + this.at[0])} ${n(y + this.at[1])}`;
  }

  /** The whole file. */
  text() {
    const size = `width="${n(this.width)}" height="${n(this.height)}" viewBox="0 0 ${n(this.width)} ${n(this.height)}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${this.parts.join("\n")}${"</g>".repeat(this.open)}</svg>\n`;
  }
}
