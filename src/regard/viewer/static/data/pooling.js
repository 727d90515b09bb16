// Pooling: a rectangle of a matrix as fewer cells, as the server pools it (viewer/data/tile_pyramid.py).

/** [height, width] cells of a rectangle, each the largest or the mean of the weights it covers; of contributions
 * (`signed`) the one of largest size.
 *
 * `rowAt(i)` is row i of the matrix. Bottom and right may lie beyond the matrix of `rows` × `columns`.
 */
export function pooled(rowAt, rows, columns, { top, left, bottom, right, height, width, pool, signed = false }) {
  const down = edges(top, Math.min(bottom, rows), height);
  const across = edges(left, Math.min(right, columns), width);
  const largest = new Float32Array(height * width);
  const sums = new Float64Array(height * width);
  for (let y = 0; y < height; y++)
    for (let i = down[y]; i < down[y + 1]; i++) {
      const row = rowAt(i);
      for (let x = 0; x < width; x++)
        for (let j = across[x]; j < across[x + 1]; j++) {
          const at = y * width + x;
          const larger = signed ? Math.abs(row[j]) > Math.abs(largest[at]) : row[j] > largest[at];
          if (larger) largest[at] = row[j];
          sums[at] += row[j];
        }
    }
  if (pool !== "mean") return largest;
  const covered = (at) => {
    const [y, x] = [Math.floor(at / width), at % width];
    return Math.max(1, (down[y + 1] - down[y]) * (across[x + 1] - across[x]));
  };
  return Float32Array.from(sums, (sum, at) => sum / covered(at));
}

/** Where `count` cells between `start` and `stop` begin, and where the last one ends.
 *
 * Cells are of a power of two where that gives as many, the last one smaller; else as even as possible.
 */
export function edges(start, stop, count) {
  const length = stop - start;
  let size = 1;
  while (size * count < length) size *= 2;
  const powers = Math.ceil(length / size) === count;
  const edge = (at) => start + (powers ? Math.min(at * size, length) : Math.floor((at * length) / count));
  return Array.from({ length: count + 1 }, (_, at) => edge(at));
}
