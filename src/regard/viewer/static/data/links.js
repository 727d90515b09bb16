// Links: the weights between labels (tokens or words), the strongest first.
import { gather } from "./tokens.js";

export class Links {
  constructor(rows, querySide, keySide) {
    this.rows = rows;
    this.querySide = querySide;
    this.keySide = keySide;
    this.known = new Map();
    /** @type {Int32Array | null} */
    this.labelOf = null;
  }

  /** From one label, by one head: {keys, weights}, strongest first; null while it is fetched. */
  from(head, query) {
    const key = head * this.querySide.groups.length + query;
    let found = this.known.get(key);
    if (!found) {
      const rows = this.querySide.groups[query].map((i) => this.rows.row(head, i));
      if (rows.includes(null)) return null;
      found = this.rows.dense
        ? sorted(
            gather(
              rows.map((row) => row.data),
              this.keySide.groups,
              this.rows.signed,
            ),
            this.rows.signed ? Math.abs : (weight) => weight,
          )
        : this.merged(rows);
      if (this.known.size > 50_000) this.known.clear();
      this.known.set(key, found);
    }
    return found;
  }

  /** All the weight of a row that `from` gave; where only its strongest are known, it is 1 nevertheless. */
  total({ weights }) {
    const size = this.rows.signed ? Math.abs : (weight) => weight;
    return this.rows.dense || !weights[0] ? weights.reduce((sum, weight) => sum + size(weight), 0) : 1;
  }

  /** To one label, by every head: weights [heads × labels of the queries], or null while it is fetched.
   *
   * Of a long text only the queries in view are asked, and a key below their strongest counts as 0: the weight of a row
   * takes all of its energies, and a column would take all rows.
   */
  to(key, view) {
    if (!this.rows.dense) return this.toOf(key, view);
    const group = this.keySide.groups[key];
    const found = this.rows.column(group[0], group[group.length - 1] + 1);
    if (!found) return null;
    const { heads, queries } = this.rows.call;
    const out = new Float32Array(heads * this.querySide.groups.length);
    for (let head = 0; head < heads; head++)
      this.querySide.groups.forEach((rows, q) => {
        let sum = 0;
        for (const i of rows) sum += found.data[head * queries + i];
        out[head * this.querySide.groups.length + q] = this.rows.signed ? sum : sum / rows.length;
      });
    return out;
  }

  toOf(key, view) {
    const { heads } = this.rows.call;
    const count = this.querySide.groups.length;
    const out = new Float32Array(heads * count);
    for (let head = 0; head < heads; head++)
      for (const query of view) {
        const found = this.from(head, query);
        const at = found ? found.keys.indexOf(key) : -1;
        if (at >= 0) out[head * count + query] = found.weights[at];
      }
    return out;
  }

  merged(rows) {
    this.labelOf ??= labelByPosition(this.keySide.groups, this.rows.call.keys);
    const { labelOf } = this;
    const sums = new Map();
    for (const { values, indices } of rows)
      values.forEach((value, at) => {
        const g = labelOf[indices[at]];
        sums.set(g, (sums.get(g) ?? 0) + value / rows.length);
      });
    const pairs = [...sums].sort((a, b) => b[1] - a[1]);
    return { keys: Int32Array.from(pairs, (p) => p[0]), weights: Float32Array.from(pairs, (p) => p[1]) };
  }
}

/** `size` is what they are sorted by: weights themselves, contributions without their signs. */
function sorted(weights, size) {
  const order = Array.from(weights.keys())
    .filter((j) => size(weights[j]) > 0)
    .sort((a, b) => size(weights[b]) - size(weights[a]));
  return { keys: Int32Array.from(order), weights: Float32Array.from(order, (j) => weights[j]) };
}

/** The label that holds each position. */
function labelByPosition(groups, count) {
  const out = new Int32Array(count);
  groups.forEach((group, label) => {
    for (const position of group) out[position] = label;
  });
  return out;
}
