// Whether a cell of the map is empty because of the mask: asked of the server where the cell's weight is exactly 0.
import { callPath } from "../../data/calls.js";

const MOST = 64; // keys that are asked about: the first of a large cell

export class MaskReader {
  /** @param {Source} source @param {() => void} changed called when an answer has come */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    this.known = new Map();
  }

  /** Whether every weight of a cell is masked; false where that is not known (yet).
   *
   * Of a cell of many weights its first and its last row are asked about.
   */
  masked({ trace, call, head, entry }, { row, column, value, cell }) {
    const path = `${callPath(trace, call)}/neuron`;
    if (value !== 0 || this.source.holds?.(path) === false) return false;
    const rows = [...new Set([row, row + cell[0] - 1])];
    const key = JSON.stringify([path, head, entry, rows, column, cell[1]]);
    if (!this.known.has(key)) {
      this.known.set(key, false);
      const cols = `${column}:${column + Math.min(MOST, cell[1])}`;
      Promise.all(rows.map((query) => this.source.get(path, { head, entry, query, cols })))
        .then((answers) => {
          this.known.set(
            key,
            answers.every(({ modified }) => modified.every((energy) => energy === null)),
          );
          this.changed();
        })
        .catch(() => {}); // without an answer nothing is said of a mask
    }
    return this.known.get(key);
  }
}
