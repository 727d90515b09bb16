// The playground's picture: a curve over one number, a field over two, bars over more. The query and the entries drag.
import { inks, makeAxes, makeBoard, place, polyline } from "../draw/canvas.js";
import { colored } from "../draw/colors.js";
import { el } from "../draw/elements.js";
import { figure, TABLES, written } from "./lookup.js";
import { average, energies, weights } from "./lookup_formulas.js";

const MARGIN = { left: 48, right: 20, top: 20, bottom: 34 };
const FIELD = 72; // cells of the field, across and down
const REACH = 14; // pixels within which a pointer takes hold of a point

/** `ask(vector)` is another query, `move(row, {key, value})` another entry. */
export function makePlot(host, { context, ask, move }) {
  /** @type {any[]} */
  let [now, shown, held, frame, axes] = Array(5).fill(null); // `frame`: what is in sight, kept still while something is dragged
  const stage = el("div.lookup-stage");
  const bars = el("div.features");
  host.append(stage, bars);
  const board = makeBoard(stage, { tabindex: "0", role: "application", "data-arrows": true }, (pen, width, height) =>
    draw(pen, width, height, inks(host)),
  );
  const { node, size } = board;

  const width = () => (Array.isArray(shown?.query) && shown.w ? shown.query.length : 0);
  /** Numbers of a place, with as many digits as a pixel is worth. */
  const at = ({ x, y }) => axes.at(x, y).map((value, d) => near(value, spans()[d]));
  const spans = () => [frame.x, frame.y].map(([least, most]) => most - least);
  const said = () => (Array.isArray(shown.z) ? shown.z.map(figure).join(", ") : String(shown.z));
  const spot = (j) => [axes.X(shown.keys[j][0]), axes.Y(width() === 1 ? shown.values[j][0] : shown.keys[j][1])];

  node.addEventListener("pointerdown", (event) => {
    held = nearest(place(event, node));
    node.setPointerCapture(event.pointerId);
    drag(event);
  });
  node.addEventListener("pointermove", (event) => {
    if (held !== null) drag(event);
    else if (frame) node.style.cursor = nearest(place(event, node)) === "query" && width() === 1 ? "ew-resize" : "grab";
  });
  for (const end of ["pointerup", "pointercancel"]) {
    node.addEventListener(end, () => {
      held = null;
      board.ask();
    });
  }
  node.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!direction || !frame) return;
    event.preventDefault();
    const step = event.shiftKey ? 0.1 : 0.01;
    ask(shown.query.map((x, d) => near(x + direction[d] * step * spans()[d], spans()[d])));
    context.announce(`query ${now.query}, z ${said()}`);
  });

  function nearest({ x, y }) {
    const far = shown.keys.map((_, j) => Math.hypot(spot(j)[0] - x, spot(j)[1] - y));
    const best = far.indexOf(Math.min(...far));
    const query = Math.hypot(axes.X(shown.query[0]) - x, width() === 1 ? 0 : axes.Y(shown.query[1]) - y);
    return far[best] < REACH && far[best] < query ? best : "query";
  }

  function drag(event) {
    const vector = at(place(event, node));
    if (held === "query") ask(vector.slice(0, width()));
    else if (width() === 1) move(held, { key: written(vector.slice(0, 1)), value: written(vector.slice(1)) });
    else move(held, { key: written(vector) });
  }

  function show(state, numbers) {
    [now, shown] = [state, numbers];
    stage.hidden = ![1, 2].includes(width()) || !shown.values.every((value) => Array.isArray(value));
    bars.hidden = width() < 3;
    if (!bars.hidden) features(TABLES[now.table].features ?? []);
    if (stage.hidden) return;
    node.setAttribute("aria-label", `query ${now.query}, z = ${said()}; arrow keys move the query, with shift further`);
    board.ask();
  }

  function draw(pen, across, down, colors) {
    if (!shown || stage.hidden) return;
    if (held === null || !frame) frame = inSight();
    axes = makeAxes({ width: across, height: down, margin: MARGIN, ...frame });
    pen.font = `12px ${colors.font}`;
    if (width() === 1) curve(pen, across, down, colors);
    else plane(pen, across, down, colors);
  }

  /** A margin of a fifth around keys and query, and for the curve around the values and the answer. */
  function inSight() {
    const spread = (all) => {
      const [least, most] = [Math.min(...all), Math.max(...all)];
      const more = (most - least || Math.abs(most) || 1) * 0.2;
      return [least - more, most + more];
    };
    const all = [...shown.keys, shown.query];
    const answer = Array.isArray(shown.z) ? [shown.z[0]] : []; // without a normalizer it may lie beyond the values
    const heights = width() === 1 ? [...shown.values.map((value) => value[0]), ...answer] : all.map((key) => key[1]);
    return { x: spread(all.map((key) => key[0])), y: spread(heights) };
  }

  /** The answer for every query in sight, not only for the one asked. */
  function answered(query) {
    const masked = now.rows.map((row) => Boolean(row.masked));
    return average(
      weights(now.normalize, energies(now.energy, query, shown.keys, masked, now.parameters, now), now.parameters),
      shown.values,
    )[0];
  }

  function curve(pen, across, down, colors) {
    axes.grid(pen, colors, { words: figure });
    const { X, Y } = axes;
    const [q] = shown.query;
    pen.save();
    pen.beginPath();
    pen.rect(MARGIN.left, MARGIN.top, across - MARGIN.left - MARGIN.right, down - MARGIN.top - MARGIN.bottom);
    pen.clip();
    Object.assign(pen, { strokeStyle: colors.accent, lineWidth: 2.5 });
    const xs = Array.from({ length: across + 1 }, (_, i) => frame.x[0] + (spans()[0] * i) / across);
    polyline(
      pen,
      xs.flatMap((x) => [X(x), Y(answered([x]))]),
    );
    pen.restore();
    Object.assign(pen, { strokeStyle: colors.ink, lineWidth: 1.5 });
    polyline(pen, [X(q), MARGIN.top, X(q), down - MARGIN.bottom]);
    entries(pen, colors);
    if (Array.isArray(shown.z)) dot(pen, X(q), Y(shown.z[0]), 7, colors.accent, colors.paper);
    label(pen, `q = ${figure(q)}    z = ${said()}`, X(q), MARGIN.top - 8, colors);
  }

  function plane(pen, across, down, colors) {
    const [wide, high] = [across - MARGIN.left - MARGIN.right, down - MARGIN.top - MARGIN.bottom];
    const data = Array.from({ length: FIELD * FIELD }, (_, i) => {
      const [column, row] = [(i % FIELD) + 0.5, Math.floor(i / FIELD) + 0.5];
      return answered(axes.at(MARGIN.left + (column * wide) / FIELD, MARGIN.top + (row * high) / FIELD));
    });
    // Averages lie between the values; sums may not.
    const all = [...shown.values.map((value) => value[0]), ...data];
    const [least, most] = [Math.min(...all), Math.max(...all)];
    const shade = (z) => 0.06 + 0.6 * ((z - least) / (most - least || 1));
    const field = colored({ data, width: FIELD, height: FIELD }, shade, context.palette.bytes);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(field, MARGIN.left, MARGIN.top, wide, high);
    axes.grid(pen, { ...colors, line: "rgb(128 128 128 / 0.25)" }, { words: figure });
    const query = [axes.X(shown.query[0]), axes.Y(shown.query[1])];
    shown.w.forEach((w, j) => {
      const size = Math.min(1, Math.abs(w)); // without a normalizer weights may be negative, or above 1
      if (size < 0.001) return;
      Object.assign(pen, { strokeStyle: colors.ink, lineWidth: 1 + 7 * size, globalAlpha: 0.25 + 0.75 * size });
      polyline(pen, [...query, ...spot(j)]);
      pen.globalAlpha = 1;
    });
    entries(pen, colors);
    dot(pen, ...query, 9, colors.accent, colors.paper);
    label(pen, `z = ${said()}`, query[0], query[1] - 16, colors);
  }

  function entries(pen, colors) {
    shown.keys.forEach((_, j) => {
      const [x, y] = spot(j);
      const radius = 5 + 10 * Math.sqrt(Math.min(1, Math.abs(shown.w[j])));
      dot(pen, x, y, radius, now.rows[j].masked ? colors.line : colors.ink, colors.paper);
      label(pen, figure(shown.values[j][0]), x, y - radius - 6, colors);
    });
  }

  function features(names) {
    const labels = shown.query.map((_, d) => names[d] ?? `feature ${d + 1}`);
    if ([...bars.children].map((line) => line.firstChild?.textContent).join() !== labels.join())
      bars.replaceChildren(...labels.map(feature));
    const z = Array.isArray(shown.z) ? shown.z : null;
    [...bars.children].forEach((line, d) => {
      const [, pair, input, figures] = /** @type {any[]} */ ([...line.children]);
      input.value = shown.query[d];
      figures.textContent = `${figure(shown.query[d])} → ${z ? figure(z[d]) : "—"}`;
      [shown.query[d], z?.[d] ?? 0].forEach(
        (x, i) => (pair.children[i].style.width = `${Math.min(Math.abs(x) / 2, 1) * 100}%`),
      );
    });
  }

  function feature(name, d) {
    const input = el("input", {
      type: "range",
      min: -2,
      max: 2,
      step: 0.05,
      "aria-label": `query, ${name}`,
      oninput: () => ask(shown.query.map((x, i) => (i === d ? Number(input.value) : x))),
    });
    return el(
      "div.feature",
      el("span.name", name),
      el("span.pair", el("span.fill.energy"), el("span.fill.weight")),
      input,
      el("span.figure"),
    );
  }

  return {
    show,
    picture: () => ({
      width: size.width,
      height: size.height,
      draw: (pen) => draw(pen, size.width, size.height, inks(host)),
    }),
    close: board.close,
  };
}

/** As many digits as a pixel of that span is worth. */
function near(x, span) {
  return Number(x.toFixed(Math.max(0, 3 - Math.floor(Math.log10(span)))));
}

function dot(pen, x, y, radius, fill, edge) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  Object.assign(pen, { fillStyle: fill, strokeStyle: edge, lineWidth: 2 });
  pen.fill();
  pen.stroke();
}

/** Words on a ground of the page's colour: legible on whatever lies under them. */
function label(pen, text, x, y, { paper, ink }) {
  const wide = pen.measureText(text).width + 8;
  Object.assign(pen, { fillStyle: paper, globalAlpha: 0.8, textAlign: "center" });
  pen.fillRect(x - wide / 2, y - 12, wide, 16);
  Object.assign(pen, { fillStyle: ink, globalAlpha: 1 });
  pen.fillText(text, x, y);
}
