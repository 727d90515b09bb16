// The chart of the Generation view: a column for each token written, a row for each token it could see.

/** `weightsOf(step)` are the weights of one step, or null while they are fetched; `now` is the step that is shown.
 *
 * @param {Pen} ctx
 * @param {{width: number, height: number, steps: number, labels: number, now: number, weightsOf: (step: number) => Float32Array | null,
 *   palette: Palette, accent: string, signed?: boolean}} chart
 */
export function drawChart(ctx, { width, height, steps, labels, now, weightsOf, palette, accent, signed = false }) {
  ctx.fillStyle = palette.ramp(0);
  ctx.fillRect(0, 0, width, height);
  const across = width / steps;
  const bins = Math.min(labels, height);
  const size = signed ? Math.abs : (weight) => weight;
  for (let step = 0; step < steps; step++) {
    const weights = weightsOf(step);
    if (!weights) continue;
    const most = new Float32Array(bins);
    weights.forEach((weight, at) => {
      const bin = Math.floor((at * bins) / labels);
      if (size(weight) > size(most[bin])) most[bin] = weight;
    });
    const peak = signed ? most.reduce((largest, weight) => Math.max(largest, size(weight)), 0) : 1;
    most.forEach((weight, bin) => {
      const share = size(weight) / (peak || 1);
      if (share < 0.001) return;
      ctx.fillStyle = signed ? palette.signed(Math.sign(weight) * Math.sqrt(share)) : palette.ramp(Math.sqrt(share));
      ctx.fillRect(step * across, (bin * height) / bins, Math.max(1, across - (across > 6 ? 1 : 0)), height / bins);
    });
  }
  ctx.strokeStyle = accent;
  ctx.lineWidth = 2;
  ctx.strokeRect(now * across, 1, across, height - 2);
}
