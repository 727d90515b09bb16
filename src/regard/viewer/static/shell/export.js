// Saving what is shown as a file, and copying a link to it.
import { inks, onPaper, sheet, shortened, textLines, write } from "../draw/canvas.js";
import { el } from "../draw/elements.js";

const LONGEST = 1500; // letters of a text that a link may carry
const NOTHING = "There is nothing to export yet: this view shows no numbers. Choose something to look at first.";

/** The view's picture in its frame, or null where it shows nothing. */
export async function figureOf(shell) {
  const picture = await shell.view?.picture?.();
  if (!picture) return null;
  const { known, trace } = shell;
  const of = known.needs === "trace" ? trace : null;
  const subject = (shell.view.subject?.() ?? []).map((part) => part.replace(/^(layer|head)(?=\d)/, "$1 "));
  const title = [known.title, of && (of.model || of.title), ...subject].filter(Boolean).join(" · ");
  return framed(picture, {
    title,
    text: of ? textOf(of) : (shell.view.caption?.() ?? ""),
    legend: shell.view.legend?.() ?? null,
    root: shell.root,
    palette: shell.palettes[shell.theme.shown],
  });
}

/** What a model read, as far as it is known. @param {Trace} trace */
function textOf(trace) {
  if (trace.made?.text) return [trace.made.text, trace.made.second].filter(Boolean).join(" / ");
  const [first = []] = Object.values(trace.sides);
  return first.slice(0, 120).join(" ").replace(/ ##/g, "").replace(/[▁Ġ]/g, "");
}

/** Save the view as "svg", "png" or "csv"; pictures on white. */
export async function exportView(shell, kind) {
  const { known } = shell;
  const model = known.needs === "trace" ? shell.trace?.model : "";
  const name = `${nameOf([model, ...(shell.view?.subject?.() ?? []), known.name])}.${kind}`;
  try {
    const drawing = async () => {
      const figure = await figureOf(shell);
      if (!figure) throw new Error(NOTHING);
      return kind === "svg" ? new Blob([svgOf(figure)], { type: "image/svg+xml" }) : pngOf(figure);
    };
    const table = kind === "csv" ? await shell.view?.table?.() : null;
    if (kind === "csv" && !table) throw new Error(NOTHING);
    if (table) save(name, new Blob([csvOf(table)], { type: "text/csv" }));
    else save(name, await shell.theme.onWhite(drawing));
    shell.notice(`Saved ${name}`);
  } catch (error) {
    shell.fail(error);
  }
}

/** Keys of the state that each view reads besides the shared ones: a link to one view leaves those of the others out. */
const OWN = {
  heads: ["heads", "pins", "mute", "lines", "shift", "toward", "at"],
  model: ["sort", "head"],
  neuron: ["head", "query", "at"],
  map: ["head", "query", "pins", "map", "toward"],
  generation: ["head", "heads", "step", "toward"],
};
const SHARED = ["view", "trace", "entry", "call", "level"];

/** The keys of the state that a link to the open view leaves out, as nulls. */
function others(shell) {
  const { name } = shell.known;
  const kept = new Set([...SHARED, ...(OWN[name] ?? [name, "models", "text", "toward", "head", "heads", "mute"])]);
  const leaves = Object.keys(shell.state.get()).filter((key) => !kept.has(key));
  return Object.fromEntries(leaves.map((key) => [key, null]));
}

/** A link to what is shown. It says which model read which text, so that it works where the trace does not exist. */
export function linkOf(shell) {
  const made = shell.known.needs === "trace" ? shell.trace?.made : null;
  const short = made && (made.text + (made.second ?? "")).length <= LONGEST;
  return shell.state.link({
    ...others(shell),
    ...(short ? { model: made.model, sentence: made.text, second: made.second, generate: made.generate || null } : {}),
  });
}

/** Copy the link; `withToken` adds what lets another browser into a server that asks for a token. */
export async function copyLink(shell, withToken = false) {
  let link = linkOf(shell);
  try {
    const { token = null } = shell.page && !shell.source.holds ? await shell.source.get("/api/token") : {};
    if (token && withToken) link = link.replace(/\/#/, `/?token=${encodeURIComponent(token)}#`);
    await navigator.clipboard.writeText(link);
    const who = withToken
      ? "whoever has it can use this server"
      : "it opens only in a browser that has opened this server";
    shell.notice(`Copied: a link to what you see${token ? `. It works while this server runs; ${who}.` : ""}`);
  } catch {
    shell.fail(new Error(`The browser did not allow copying. The link is ${link}`));
  }
}

// A figure for a paper or a slide: a view's picture with its title, model and text above, and what its colours mean below.

const EDGE = 20; // pixels
const LINE = 20;
const LETTER = 7.2; // pixels of a letter of the text, on average
const LEAST = 420; // pixels of width
const MOST_LINES = 4;
const BAR = { width: 220, height: 10 };

/** `title` is a line, `text` what the model read, `legend` what the view's colours mean: see types/viewer.d.ts (Legend).
 *
 * @param {{width: number, height: number, draw(pen: Pen): void}} picture
 * @param {{title: string, text: string, legend: Legend | null, root: HTMLElement, palette: Palette}} words
 */
function framed(picture, { title, text, legend, root, palette }) {
  const colors = inks(root);
  const width = Math.max(LEAST, picture.width + 2 * EDGE);
  const lines = text ? textLines(text, Math.floor((width - 2 * EDGE) / LETTER)) : [];
  const kept = lines.length > MOST_LINES ? [...lines.slice(0, MOST_LINES - 1), `${lines[MOST_LINES - 1]} …`] : lines;
  const top = EDGE + 24 + LINE * kept.length + 8;
  const below = legend ? legendHeight(legend, width) : 0;
  const height = top + picture.height + below + EDGE;
  return onPaper(width, height, colors.paper, (pen) => {
    Object.assign(pen, { textAlign: "left", textBaseline: "alphabetic", globalAlpha: 1 });
    Object.assign(pen, { fillStyle: colors.ink, font: `600 16px ${colors.font}` });
    pen.fillText(shortened(pen, title, width - 2 * EDGE), EDGE, EDGE + 14);
    Object.assign(pen, { fillStyle: colors.soft, font: `13px ${colors.font}` });
    kept.forEach((line, at) => pen.fillText(line, EDGE, EDGE + 36 + LINE * at));
    pen.save();
    pen.translate((width - picture.width) / 2, top);
    picture.draw(pen);
    pen.restore();
    if (legend) drawLegend(pen, legend, top + picture.height + 14, width, colors, palette);
    const small = { textAlign: "right", fillStyle: colors.soft, font: `11px ${colors.font}` };
    write(pen, "regard", width - EDGE, height - 8, small);
  });
}

const ENTRY = 76; // pixels of one head of a legend

function perLine(width) {
  return Math.max(1, Math.floor((width - 2 * EDGE) / ENTRY));
}

function legendHeight(legend, width) {
  const rows = legend.entries ? Math.ceil(legend.entries.length / perLine(width)) : 0;
  return 18 + LINE * (rows + (hasRamp(legend) ? 2 : 0) + (legend.note ? 1 : 0));
}

function hasRamp(legend) {
  return !legend.entries || legend.words !== undefined;
}

/** Heads and their colours, how strong a line is, a ramp of colours, a remark: those that the legend has, one below another. */
function drawLegend(pen, legend, y, width, colors, palette) {
  Object.assign(pen, { textAlign: "left", textBaseline: "middle", font: `12px ${colors.font}` });
  if (legend.entries) {
    legend.entries.forEach(({ label, color }, at) => {
      const [x, row] = [EDGE + (at % perLine(width)) * ENTRY, y + LINE * Math.floor(at / perLine(width))];
      pen.fillStyle = color;
      pen.fillRect(x, row - 6, 12, 12);
      write(pen, label, x + 18, row, { fillStyle: colors.ink });
    });
    y += LINE * Math.ceil(legend.entries.length / perLine(width));
  }
  if (hasRamp(legend)) y = drawRamp(pen, legend, y, colors, palette);
  if (!legend.note) return;
  Object.assign(pen, { textAlign: "left", fillStyle: colors.soft, font: `12px ${colors.font}` });
  pen.fillText(shortened(pen, legend.note, width - 2 * EDGE), EDGE, y);
}

function drawRamp(pen, legend, y, colors, palette) {
  for (let x = 0; x < BAR.width; x += 2) {
    pen.fillStyle = legend.signed ? palette.signed((2 * x) / BAR.width - 1) : palette.ramp(x / BAR.width);
    pen.fillRect(EDGE + x, y - BAR.height / 2, 2, BAR.height);
  }
  Object.assign(pen, { strokeStyle: colors.line, lineWidth: 1 });
  pen.strokeRect(EDGE, y - BAR.height / 2, BAR.width, BAR.height);
  write(pen, legend.from ?? "0", EDGE, y + 16, { fillStyle: colors.ink });
  write(pen, legend.to ?? "1", EDGE + BAR.width, y + 16, { textAlign: "right" });
  write(pen, legend.words ?? "", EDGE + BAR.width + 12, y, { textAlign: "left", fillStyle: colors.soft });
  return y + 2 * LINE;
}

/** The same below the view on the page. @param {Legend | null} legend @param {Palette} palette */
export function legendLine(legend, palette) {
  if (!legend) return [];
  const swatch = (background) => Object.assign(el("span.swatch"), { style: `background: ${background}` });
  const entries = (legend.entries ?? []).map(({ label, color }, at) =>
    el("span", at ? "" : "head", swatch(color), label.replace("head ", "")),
  );
  const colors = [0, 0.25, 0.5, 0.75, 1].map((x) => (legend.signed ? palette.signed(2 * x - 1) : palette.ramp(x)));
  const bar = Object.assign(el("span.ramp"), { style: `background: linear-gradient(to right, ${colors.join()})` });
  const ramp = hasRamp(legend)
    ? [el("span", legend.from ?? "0", bar, legend.to ?? "1", legend.words ? ` ${legend.words}` : "")]
    : [];
  return [...entries, ...ramp, legend.note ? el("span", `· ${legend.note}`) : ""].filter(Boolean);
}

// What is shown, as a file: SVG, PNG, CSV.
//
// A view's `picture()` is {width, height, draw(ctx)}, drawn anew for either kind of file.

const SHARP = 2; // pixels of a PNG per pixel of the page

/** SVG text of a picture. @param {Picture | null | undefined} picture */
export function svgOf(picture) {
  const { width, height, draw } = /** @type {any} */ (picture); // the pen has what our views use
  const pen = new SvgContext(width, height);
  draw(pen);
  return pen.text();
}

/** A PNG blob of a picture. */
function pngOf({ width, height, draw }) {
  const pen = sheet(Math.ceil(width * SHARP), Math.ceil(height * SHARP));
  pen.scale(SHARP, SHARP);
  draw(pen);
  return new Promise((resolve) => pen.canvas.toBlob(resolve, "image/png"));
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

// A drawing context that writes SVG: the part of the canvas's own that our views use, so one `draw(ctx)` is both.

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

/** What `save` keeps. */
const KEPT = [
  ...["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline", "lineCap"],
  ...["at", "turn", "open"],
];

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
    this.stack.push(Object.fromEntries(KEPT.map((name) => [name, this[name]])));
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

  rect(x, y, w, h) {
    this.path += `M${this.xy(x, y)}h${n(w)}v${n(h)}h${n(-w)}Z`;
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
    ruler ??= sheet(1, 1);
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
