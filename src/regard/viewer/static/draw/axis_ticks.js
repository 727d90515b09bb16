// Axes and lines of plots.

/** @param {Pen} pen @param {number[][]} points */
export function polyline(pen, points) {
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.stroke();
}

/** Round numbers from one to another, about five of them. @param {number} from @param {number} to */
export function ticks(from, to) {
  const step = roundStep((to - from) / 5);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
}

/** The smallest of 1, 2, 5, 10, 20, 50 … (and 0.5, 0.2 …) that is at least `least`. @param {number} least */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5].map((x) => x * power).find((x) => x >= least) ?? 10 * power;
}
