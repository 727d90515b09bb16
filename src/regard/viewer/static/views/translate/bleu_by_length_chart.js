// BLEU by the length of the sentence, with and without attention (Bahdanau et al. 2015, figure 2).
//
// GET /api/length answers {curves: [{data, translator, points: [[words in the source, BLEU, sentences], …]}]}.

import { polyline, ticks } from "../../draw/axis_ticks.js";
import { inks, makeBoard, shortened } from "../../draw/canvas.js";
import { el } from "../../draw/dom.js";

const NARROW = 300; // pixels of a panel at least
const EDGE = { left: 44, right: 96, top: 34, bottom: 40 };
const NAMES = { seq2seq: "without attention", bahdanau: "Bahdanau", transformer: "Transformer" };
const DASHES = [[], [6, 4], [2, 3]];

/** One panel per corpus, side by side. */
export function makeCurves(host, context, curves) {
  const corpora = [...new Set(curves.map((curve) => curve.data))];
  const translators = [...new Set(curves.map((curve) => curve.translator))];
  const color = (translator) => context.palette.head(translators.indexOf(translator));
  host.replaceChildren(
    el("h2", {}, "How translators cope with length"),
    el("p.story", {}, "BLEU by the words of the sentence: without attention, long sentences are lost."),
  );
  const stage = el("div.curves");
  stage.style.setProperty("--panels", String(corpora.length));
  host.append(stage);
  const name = (translator) => NAMES[translator] ?? translator;
  const told = curves.map(({ data, translator, points }) => {
    const numbers = points.map(([words, bleu]) => `${bleu} at ${words} words`);
    return `${data}, ${name(translator)}: ${numbers.join(", ")}`;
  });
  const board = makeBoard(
    stage,
    { role: "img", "aria-label": `BLEU by length. ${told.join(". ")}` },
    (pen, width, height) => {
      const across = width < NARROW * corpora.length ? 1 : corpora.length; // one below another on a phone
      const [wide, high] = [width / across, (height * across) / corpora.length];
      corpora.forEach((corpus, at) => {
        pen.save();
        pen.translate((at % across) * wide, Math.floor(at / across) * high);
        drawPanel(
          pen,
          wide,
          high,
          corpus,
          curves.filter((curve) => curve.data === corpus),
        );
        pen.restore();
      });
    },
  );

  function drawPanel(pen, width, height, title, mine) {
    const { ink, soft, line, font } = inks(host);
    const most = Math.max(...mine.flatMap((curve) => curve.points.map(([, bleu]) => bleu)));
    const [first, last] = [Math.min, Math.max].map((pick) =>
      pick(...mine.flatMap((curve) => curve.points.map(([words]) => words))),
    );
    const X = (words) => EDGE.left + ((words - first) / (last - first || 1)) * (width - EDGE.left - EDGE.right);
    const Y = (bleu) => height - EDGE.bottom - (bleu / most) * (height - EDGE.top - EDGE.bottom);
    Object.assign(pen, {
      font: `600 13px ${font}`,
      fillStyle: ink,
      textAlign: "left",
      lineWidth: 1,
      strokeStyle: line,
    });
    pen.fillText(shortened(pen, title, width - EDGE.left), EDGE.left, 16);
    Object.assign(pen, { font: `12px ${font}`, fillStyle: soft, textAlign: "right" });
    for (const bleu of ticks(0, most)) {
      polyline(pen, [
        [X(first), Y(bleu)],
        [X(last), Y(bleu)],
      ]);
      pen.fillText(String(bleu), X(first) - 8, Y(bleu) + 4);
    }
    pen.textAlign = "center";
    for (const words of ticks(first, last)) pen.fillText(String(words), X(words), height - EDGE.bottom + 18);
    pen.fillText("words in the source", (X(first) + X(last)) / 2, height - 6);
    const labels = spread(
      mine.map(({ translator, points }) => ({ translator, y: Y(points.at(-1)[1]), x: X(points.at(-1)[0]) })),
    );
    for (const { translator, points } of mine) {
      Object.assign(pen, { strokeStyle: color(translator), fillStyle: color(translator), lineWidth: 2.5 });
      pen.setLineDash?.(DASHES[translators.indexOf(translator) % DASHES.length]);
      polyline(
        pen,
        points.map(([words, bleu]) => [X(words), Y(bleu)]),
      );
      pen.setLineDash?.([]);
      for (const [words, bleu] of points) {
        pen.beginPath();
        pen.arc(X(words), Y(bleu), 3.5, 0, 2 * Math.PI);
        pen.fill();
      }
    }
    pen.textAlign = "left";
    for (const { translator, x, y } of labels) {
      pen.fillStyle = color(translator);
      name(translator)
        .split(" ")
        .forEach((word, i) => pen.fillText(word, x + 10, y + 4 + 14 * i));
    }
  }

  return board;
}

/** Labels at the ends of lines, moved apart where they would overlap. */
function spread(labels) {
  const sorted = [...labels].sort((a, b) => a.y - b.y);
  sorted.forEach((label, i) => {
    if (i > 0) label.y = Math.max(label.y, sorted[i - 1].y + 18);
  });
  return sorted;
}
