// The playground's picture: a curve over one number, a field over two, bars over more. The query and the entries drag.

import { polyline, ticks } from "../../draw/axis_ticks.js";
import { inks, makeBoard, place } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";
import { figure, TABLES, written } from "./lookup_examples.js";
import { average, energies, weights } from "./lookup_formulas.js";

const MARGIN = { left: 48, right: 20, top: 20, bottom: 34 };
const FIELD = 72; // cells of the field, across and down
const REACH = 14; // pixels within which a pointer takes hold of a point

/** `ask(vector)` is another query, `move(row, {key, value})` another entry. */
export function makePlot(host, { context, ask, move }) {
  /** @type {any[]} */
  let [now, shown, held, frame] = [null, null, null, null]; // `frame`: the axes, kept still while something is dragged
  const stage = el("div.lookup-stage");
  const bars = el("div.features");
  host.append(stage, bars);
  const board = makeBoard(stage, { tabindex: "0", role: "application", "data-arrows": true }, (pen, width, height) =>
    draw(pen, width, height, inks(host)),
  );
  const { node, size } = board;

  const width = () => (Array.isArray(shown?.query) && shown.w ? shown.query.length : 0);
  const X = (x) => MARGIN.left + ((x - frame.x0) / (frame.x1 - frame.x0)) * (size.width - MARGIN.left - MARGIN.right);
  const Y = (y) =>
    size.height - MARGIN.bottom - ((y - frame.y0) / (frame.y1 - frame.y0)) * (size.height - MARGIN.top - MARGIN.bottom);
  const at = ({ x, y }) => [
    near(
      frame.x0 + ((x - MARGIN.left) / (size.width - MARGIN.left - MARGIN.right)) * (frame.x1 - frame.x0),
      frame.x1 - frame.x0,
    ),
    near(
      frame.y0 +
        ((size.height - MARGIN.bottom - y) / (size.height - MARGIN.top - MARGIN.bottom)) * (frame.y1 - frame.y0),
      frame.y1 - frame.y0,
    ),
  ];
  const said = () => (Array.isArray(shown.z) ? shown.z.map(figure).join(", ") : String(shown.z));
  const spot = (j) => [X(shown.keys[j][0]), Y(width() === 1 ? shown.values[j][0] : shown.keys[j][1])];

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
    const spans = [frame.x1 - frame.x0, frame.y1 - frame.y0];
    ask(shown.query.map((x, d) => near(x + direction[d] * (event.shiftKey ? 0.1 : 0.01) * spans[d], spans[d])));
    context.announce(`query ${now.query}, z ${said()}`);
  });

  function nearest({ x, y }) {
    const far = shown.keys.map((_, j) => Math.hypot(spot(j)[0] - x, spot(j)[1] - y));
    const best = far.indexOf(Math.min(...far));
    const query =
      width() === 1 ? Math.abs(X(shown.query[0]) - x) : Math.hypot(X(shown.query[0]) - x, Y(shown.query[1]) - y);
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
    if (held === null || !frame) frame = axes();
    pen.font = `12px ${colors.font}`;
    if (width() === 1) curve(pen, across, down, colors);
    else plane(pen, across, down, colors);
  }

  /** A margin of a fifth around keys and query, and for the curve around the values and the answer. */
  function axes() {
    const spread = (all) => {
      const [least, most] = [Math.min(...all), Math.max(...all)];
      const more = (most - least || Math.abs(most) || 1) * 0.2;
      return [least - more, most + more];
    };
    const all = [...shown.keys, shown.query];
    const [x0, x1] = spread(all.map((key) => key[0]));
    const answer = Array.isArray(shown.z) ? [shown.z[0]] : []; // without a normalizer it may lie beyond the values
    const heights = width() === 1 ? [...shown.values.map((value) => value[0]), ...answer] : all.map((key) => key[1]);
    const [y0, y1] = spread(heights);
    return { x0, x1, y0, y1 };
  }

  function grid(pen, across, down, { line, soft }) {
    Object.assign(pen, { strokeStyle: line, fillStyle: soft, lineWidth: 1, textAlign: "center" });
    for (const x of ticks(frame.x0, frame.x1)) {
      polyline(pen, [
        [X(x), MARGIN.top],
        [X(x), down - MARGIN.bottom],
      ]);
      pen.fillText(figure(x), X(x), down - MARGIN.bottom + 18);
    }
    pen.textAlign = "right";
    for (const y of ticks(frame.y0, frame.y1)) {
      polyline(pen, [
        [MARGIN.left, Y(y)],
        [across - MARGIN.right, Y(y)],
      ]);
      pen.fillText(figure(y), MARGIN.left - 8, Y(y) + 4);
    }
  }

  /** The answer for every query in sight, not only for the one asked. */
  function answered(query) {
    const masked = now.rows.map((row) => Boolean(row.masked));
    return average(
      weights(now.normalize, energies(now.energy, query, shown.keys, masked, now.parameters, now), {
        ...now.parameters,
        own: now.own,
      }),
      shown.values,
    )[0];
  }

  function curve(pen, across, down, colors) {
    grid(pen, across, down, colors);
    const [q] = shown.query;
    const points = Array.from({ length: across + 1 }, (_, i) => frame.x0 + ((frame.x1 - frame.x0) * i) / across);
    pen.save();
    pen.beginPath();
    pen.rect(MARGIN.left, MARGIN.top, across - MARGIN.left - MARGIN.right, down - MARGIN.top - MARGIN.bottom);
    pen.clip();
    Object.assign(pen, { strokeStyle: colors.accent, lineWidth: 2.5 });
    polyline(
      pen,
      points.map((x) => [X(x), Y(answered([x]))]),
    );
    pen.restore();
    Object.assign(pen, { strokeStyle: colors.ink, lineWidth: 1.5 });
    polyline(pen, [
      [X(q), MARGIN.top],
      [X(q), down - MARGIN.bottom],
    ]);
    entries(pen, colors);
    if (Array.isArray(shown.z)) dot(pen, X(q), Y(shown.z[0]), 7, colors.accent, colors.paper);
    label(pen, `q = ${figure(q)}    z = ${said()}`, X(q), MARGIN.top - 8, colors);
  }

  function plane(pen, across, down, colors) {
    const cell = [(across - MARGIN.left - MARGIN.right) / FIELD, (down - MARGIN.top - MARGIN.bottom) / FIELD];
    const field = Array.from({ length: FIELD * FIELD }, (_, i) => {
      const [u, v] = [((i % FIELD) + 0.5) / FIELD, (Math.floor(i / FIELD) + 0.5) / FIELD];
      return answered([frame.x0 + u * (frame.x1 - frame.x0), frame.y1 - v * (frame.y1 - frame.y0)]);
    });
    // Averages lie between the values; sums may not.
    const all = [...shown.values.map((value) => value[0]), ...field];
    const [least, most] = [Math.min(...all), Math.max(...all)];
    for (const [i, z] of field.entries()) {
      const [column, row] = [i % FIELD, Math.floor(i / FIELD)];
      const [x, y] = [MARGIN.left + column * cell[0], MARGIN.top + row * cell[1]];
      pen.fillStyle = context.palette.ramp(0.06 + 0.6 * ((z - least) / (most - least || 1)));
      // Cells end on whole pixels, or seams show between them.
      pen.fillRect(
        Math.round(x),
        Math.round(y),
        Math.round(x + cell[0]) - Math.round(x),
        Math.round(y + cell[1]) - Math.round(y),
      );
    }
    grid(pen, across, down, { ...colors, line: "rgb(128 128 128 / 0.25)" });
    const query = [X(shown.query[0]), Y(shown.query[1])];
    shown.w.forEach((w, j) => {
      const size = Math.min(1, Math.abs(w)); // without a normalizer weights may be negative, or above 1
      if (size < 0.001) return;
      Object.assign(pen, { strokeStyle: colors.ink, lineWidth: 1 + 7 * size, globalAlpha: 0.25 + 0.75 * size });
      polyline(pen, [query, spot(j)]);
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
      {},
      el("span.name", {}, name),
      el("span.pair", {}, el("span.fill.energy"), el("span.fill.weight")),
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
