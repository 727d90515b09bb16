// The picture of positions: the vectors of the first positions, and how much an energy changes with the distance.
import { polyline, ticks } from "../../draw/axis_ticks.js";
import { inks, makeBoard, shortened } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { figure } from "./lookup_examples.js";
import { MOST_POSITION, POSITIONS } from "./lookup_positions.js";

const WIDTH = 32; // components of the vectors in the picture: more than a table has, as many as a small model
const COUNT = MOST_POSITION + 1;
const MARGIN = { left: 44, right: 14, top: 26, bottom: 30 };

export function makePositionsPlot(host, { context }) {
  let now = null;
  const picture = el("div.positions-matrix");
  const curve = el("div.positions-curve");
  host.append(picture, curve);
  const shown = () => now && now.positions !== "none";
  const boards = [
    makeBoard(picture, { role: "img" }, (pen, width, height) => shown() && matrix(pen, width, height, inks(host))),
    makeBoard(curve, { role: "img" }, (pen, width, height) => shown() && byDistance(pen, width, height, inks(host))),
  ];

  function matrix(pen, width, height, colors) {
    const part = POSITIONS[now.positions];
    const rows = Array.from({ length: COUNT }, (_, p) => part.row(p, WIDTH, now.parameters));
    const size = Math.max(1e-12, ...rows.flat().map(Math.abs));
    const [across, down] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const X = (c) => Math.round(MARGIN.left + (c * across) / rows[0].length);
    const Y = (p) => Math.round(MARGIN.top + (p * down) / COUNT);
    heading(pen, part.rows, width, colors);
    rows.forEach((row, p) => {
      row.forEach((x, c) => {
        pen.fillStyle = context.palette.signed(x / size);
        pen.fillRect(X(c), Y(p), X(c + 1) - X(c), Y(p + 1) - Y(p)); // on whole pixels, or seams show between cells
      });
    });
    Object.assign(pen, { strokeStyle: colors.line, lineWidth: 1, fillStyle: colors.soft, textAlign: "right" });
    pen.strokeRect(X(0) - 0.5, Y(0) - 0.5, X(rows[0].length) - X(0) + 1, Y(COUNT) - Y(0) + 1);
    for (const p of [0, 8, 16, 24]) pen.fillText(String(p), MARGIN.left - 8, (Y(p) + Y(p + 1)) / 2 + 4);
    Object.assign(pen, { fillStyle: colors.accent, textAlign: "right" });
    const [edge, middle] = [X(rows[0].length) + 3, (Y(now.at) + Y(now.at + 1)) / 2];
    pen.beginPath();
    pen.moveTo(edge, middle);
    pen.lineTo(edge + 9, middle - 6);
    pen.lineTo(edge + 9, middle + 6);
    pen.fill();
    pen.fillText(`the query stands at ${now.at}`, width, height - 10);
  }

  function byDistance(pen, width, height, colors) {
    const part = POSITIONS[now.positions];
    const of = (distance) => part.byDistance(distance, WIDTH, now.parameters);
    const reach = COUNT;
    const points = Array.from({ length: 8 * reach + 1 }, (_, i) => -reach + i / 4).map((d) => [d, of(d)]);
    const values = points.map((point) => point[1]);
    const [least, most] = [Math.min(0, ...values), Math.max(0, ...values)];
    const X = (d) => MARGIN.left + ((d + reach) / (2 * reach)) * (width - MARGIN.left - MARGIN.right);
    const Y = (y) =>
      height - MARGIN.bottom - ((y - least) / (most - least || 1)) * (height - MARGIN.top - MARGIN.bottom);
    heading(pen, part.curve, width, colors);
    Object.assign(pen, { strokeStyle: colors.line, fillStyle: colors.soft, lineWidth: 1, textAlign: "right" });
    for (const y of ticks(least, most)) {
      polyline(pen, [
        [MARGIN.left, Y(y)],
        [width - MARGIN.right, Y(y)],
      ]);
      pen.fillText(figure(y), MARGIN.left - 8, Y(y) + 4);
    }
    pen.textAlign = "center";
    for (const d of [-24, -16, -8, 0, 8, 16, 24]) pen.fillText(figure(d), X(d), height - 10);
    Object.assign(pen, { strokeStyle: colors.accent, lineWidth: 2 });
    polyline(
      pen,
      points.map(([d, y]) => [X(d), Y(y)]),
    );
    now.rows.forEach((row, j) => {
      if (row.masked || Math.abs(j - now.at) > reach) return;
      Object.assign(pen, { fillStyle: colors.ink, strokeStyle: colors.paper, lineWidth: 1.5 });
      pen.beginPath();
      pen.arc(X(j - now.at), Y(of(j - now.at)), 4.5, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    });
  }

  function heading(pen, text, width, colors) {
    Object.assign(pen, { font: `12px ${colors.font}`, fillStyle: colors.soft, textAlign: "left" });
    pen.fillText(shortened(pen, text, width - MARGIN.left), MARGIN.left, 14);
  }

  return {
    show(state) {
      now = state;
      host.hidden = !shown();
      if (host.hidden) return;
      const { title, rows, curve: words } = POSITIONS[now.positions];
      boards[0].node.setAttribute("aria-label", `${title} positions. ${rows}; the query stands at ${now.at}`);
      boards[1].node.setAttribute("aria-label", `${title} positions by distance: ${words}`);
      for (const board of boards) board.ask();
    },
    close() {
      for (const board of boards) board.close();
    },
  };
}
