// What the Inside view says of the number that is pointed at.
import { plain } from "../../data/tokens.js";
import { exact } from "../../draw/numbers.js";
import { hasTokenColumns } from "./matrix_layout.js";

/** The number that is pointed at, in words. `view` is the Inside view. */
export function cellReading(view) {
  if (!view.answer || !view.hover) {
    return "Point at a number, or tap it: its row and its column light up.";
  }
  const { box, row, column } = view.hover;
  const value = view.answer.matrices[box.name][row][column];
  const square = hasTokenColumns(box.name);
  const token = (i) => `“${plain(view.answer.tokens[i])}”`;
  const where =
    box.role === "right"
      ? `number ${row}, ${token(column)}`
      : `${token(row)}, ${square ? token(column) : `number ${column}`}`;
  const sum =
    box.role === "result" ? `: the sum of ${view.sizes[view.answer.steps[view.step].product[0]][1]} products` : "";
  return `${box.name} of ${where} = ${value === null ? "masked" : value >= 0 ? exact(value) : `−${exact(-value)}`}${sum}`;
}
