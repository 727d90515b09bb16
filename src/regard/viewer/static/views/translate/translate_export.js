// The Translate view as a picture and as a table.
import { inks, onPaper } from "../../draw/canvas.js";

/** The alignments side by side, each below its title and translation; null where there are none. */
export function translationPicture(view) {
  const cards = view.cards.filter((card) => card.alignment);
  if (!cards.length) return null;
  const { paper, ink, font } = inks(view.columns);
  const sizes = cards.map((card) => card.alignment.board.size);
  const width = Math.max(
    320,
    sizes.reduce((sum, size) => sum + size.width, 0),
  );
  const height = Math.max(40, ...sizes.map((size) => size.height)) + 56;
  const draw = (pen) => {
    let x = 0;
    cards.forEach((card, at) => {
      pen.save();
      pen.translate(x, 0);
      Object.assign(pen, { fillStyle: ink, textAlign: "left", font: `600 14px ${font}` });
      pen.fillText(card.answer.title, 16, 22);
      pen.font = `14px ${font}`;
      pen.fillText(card.answer.translation, 16, 42);
      pen.translate(0, 52);
      card.alignment.draw(pen);
      pen.restore();
      x += sizes[at].width;
    });
  };
  return onPaper(width, height, paper, draw);
}

export function translationTable(view) {
  return view.cards.flatMap(({ answer, table }) => [
    [answer.title, answer.translation],
    ["", ...table.columns],
    ...(table.weights ?? []).map((row, r) => [table.rows[r], ...row]),
  ]);
}
