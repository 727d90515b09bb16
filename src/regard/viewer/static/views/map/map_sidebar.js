// Beside the map: what is under the cross, what a cell is, the colours, and where in the whole one is.
import { answerLine } from "../../draw/answer_line.js";
import { inks, makeBoard, place } from "../../draw/canvas.js";
import { marks, shader } from "../../draw/color_scale.js";
import { el } from "../../draw/dom.js";
import { count, exact, number } from "../../draw/numbers.js";

const AROUND = 6; // tokens of context
export const POOLS = { max: "largest", mean: "mean" };

/** `look()` is {panels, titles, camera, cross, pool, shade, palette, level, coarse: why it is not by words}. */
export class MapAside {
  /** Pixels of a weight in the overview. @type {number} */
  scale;

  constructor(look, jump) {
    this.look = look;
    this.reading = el("div.map-reading");
    this.caption = el("p.map-caption", { role: "status" });
    const legend = el("div.map-legend");
    const overview = el("div.map-overview");
    const help = el(
      "p.quietly",
      {},
      "Drag or arrow keys move, wheel or + − zoom, Home shows all, a double click zooms in.",
    );
    this.root = el(
      "aside.aside.map-aside",
      { "aria-label": "Reading", tabIndex: 0 },
      this.reading,
      this.caption,
      legend,
      overview,
      help,
    );
    this.answer = answerLine(this.root);
    this.legend = makeBoard(legend, { role: "img", "aria-label": "From no weight to all of it" }, (pen, width) =>
      this.drawLegend(pen, width),
    );
    this.overview = makeBoard(
      overview,
      { role: "img", "aria-label": "Where in the whole head this is" },
      (pen, width, height) => this.drawOverview(pen, width, height),
    );
    this.overview.node.addEventListener("pointerdown", (event) => {
      const { x, y } = place(event, this.overview.node);
      jump(x / this.scale, y / this.scale);
    });
  }

  draw() {
    this.write();
    this.legend.ask();
    this.overview.ask();
  }

  write() {
    const { panels, level, pool, coarse, peak } = this.look();
    const what = peak(0) ? "contribution" : "weight";
    const side = count(2 ** level);
    const pending = panels.reduce((sum, panel) => sum + panel.tiles.pending, 0);
    const failed = panels.map((panel) => panel.tiles.failed(level)).find(Boolean);
    const cell =
      level === 0 ? `Each cell is one ${what}.` : `Each cell is the ${POOLS[pool]} of ${side} × ${side} ${what}s.`;
    const share = Math.floor(100 * Math.min(...panels.map((panel) => panel.tiles.computed)));
    const walk =
      pending && level > 0 && share < 100 ? ` ${share} % of the head is computed; what is not is blank.` : "";
    const waiting = walk
      ? walk
      : pending
        ? ` Computing ${pending} tile${pending > 1 ? "s" : ""}; coarser until they are here.`
        : "";
    const text = cell + coarse + (failed ? ` Coarser where they are missing: ${failed}` : waiting);
    if (this.caption.textContent !== text) this.caption.textContent = text;
    this.reading.replaceChildren(...this.readingOf());
  }

  readingOf() {
    const { panels, titles, cross, pool, masked, peak, answer } = this.look();
    const found = cross ? panels.map((panel) => panel.read(cross)) : [];
    const first = found.find(Boolean);
    const { queries, keys } = panels[0].call;
    this.answer.show("");
    if (!first)
      return [
        el("h2", {}, `${count(queries)} × ${count(keys)}`),
        el("p.quietly", {}, "queries × keys. Point at the map to read it."),
      ];
    const [rows, columns] = first.cell;
    const noun = peak(0) ? "contribution" : "weight";
    const to = peak(0) ? ` to ${answer}` : "";
    const what =
      rows * columns === 1
        ? `the ${noun}${to} of`
        : `the ${POOLS[pool]} of ${count(rows)} × ${count(columns)} ${noun}s${to} of`;
    const values = found.flatMap((one, at) =>
      one
        ? [
            ...(panels.length > 1 ? [el("p.quietly.map-of", {}, titles[at])] : []),
            el("p.map-value", { title: titles[at] }, peak(at) ? number(one.value) : exact(one.value)),
          ]
        : [],
    );
    const { query, key } = panels[0].sides;
    const numbers = found.flatMap((one, at) => (one ? [peak(at) ? number(one.value) : exact(one.value)] : []));
    this.answer.show(`${query[first.row]} → ${key[first.column]}: ${numbers.join(" and ")}`);
    const closed = found.some((one, at) => one && masked(at, one));
    return [
      ...values,
      closed ? el("p.map-masked", {}, "Masked: this query may not look at this key.") : "",
      el("p.quietly", {}, what),
      ...around("query", first.row, rows, query),
      ...around("key", first.column, columns, key),
    ];
  }

  drawLegend(pen, width) {
    const { shade, palette, panels, peak } = this.look();
    const { soft, font } = inks(this.root);
    const { keys } = panels[0].call;
    const most = peak(0);
    for (let x = 0; x < width; x++) {
      pen.fillStyle = most ? palette.signed((2 * x) / width - 1) : palette.ramp(x / width);
      pen.fillRect(x, 0, 1, 10);
    }
    Object.assign(pen, { fillStyle: soft, font: `11px ${font}` });
    if (most) {
      const ends = [
        ["left", 0, number(-most)],
        ["center", width / 2, "0"],
        ["right", width, number(most)],
      ];
      for (const [align, x, text] of ends) {
        pen.textAlign = align;
        pen.fillText(text, x, 24);
      }
      return;
    }
    const scale = shader(shade, keys);
    for (const weight of marks(shade, keys)) {
      const x = scale(weight) * width;
      pen.textAlign = x > width - 14 ? "right" : x < 14 ? "left" : "center";
      pen.fillText(
        weight === 0 || weight >= 0.01 ? String(weight) : weight.toExponential(0).replace("e-", "e−"),
        x,
        24,
      );
    }
  }

  drawOverview(pen, width, height) {
    const [panel] = this.look().panels;
    const { queries, keys } = panel.call;
    const { accent, line } = inks(this.root);
    const scale = Math.min(width / keys, height / queries);
    this.scale = scale;
    const tile = panel.tiles.find(panel.tiles.top, 0, 0);
    if (tile?.data) {
      const cell = 2 ** panel.tiles.top;
      pen.save();
      pen.beginPath();
      pen.rect(0, 0, keys * scale, queries * scale);
      pen.clip();
      pen.imageSmoothingEnabled = cell * scale < 1;
      pen.drawImage(panel.image(tile), 0, 0, tile.width * cell * scale, tile.height * cell * scale);
      pen.restore();
    }
    pen.strokeStyle = line;
    pen.strokeRect(0.5, 0.5, keys * scale - 1, queries * scale - 1);
    const { area } = panel;
    const [from, to] = [panel.under(area.x, area.y), panel.under(area.x + area.width, area.y + area.height)];
    const [x0, y0] = [Math.max(0, from.column) * scale, Math.max(0, from.row) * scale];
    const [x1, y1] = [Math.min(keys, to.column) * scale, Math.min(queries, to.row) * scale];
    Object.assign(pen, { strokeStyle: accent, lineWidth: 2 });
    pen.strokeRect(x0 + 1, y0 + 1, Math.max(3, x1 - x0 - 2), Math.max(3, y1 - y0 - 2));
  }

  close() {
    this.legend.close();
    this.overview.close();
  }
}

/** A place and the tokens around it. */
function around(name, from, many, tokens) {
  const range = many === 1 ? count(from) : `${count(from)}–${count(from + many - 1)}`;
  const first = Math.max(0, from - AROUND);
  const words = tokens.slice(first, from + 1 + AROUND).map((token, i) => {
    const here = first + i >= from && first + i < from + many;
    return el(here ? "mark" : "span", {}, token);
  });
  return [el("h3", {}, `${name} ${range}`), el("p.map-context", {}, ...words.flatMap((word) => [word, " "]))];
}
