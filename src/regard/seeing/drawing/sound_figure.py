"""A figure of a sound: its waveform, and below it the attention weights on the same time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .matplotlib_figures import escape_math, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, Int16
    from torch import Tensor


def save_sound_figure(
    file: str | Path,
    samples: Int16[np.ndarray, "samples"],
    rate: int,
    weights: Float[Tensor, "rows places"],
    rows: Sequence[str],
) -> None:
    """One row of weights as a curve; several rows, one for each letter of the output, as a heatmap."""
    from matplotlib.figure import Figure

    if len(rows) != len(weights):
        raise ValueError(f"there are {len(weights)} rows of weights and {len(rows)} labels")
    seconds = len(samples) / rate
    figure = Figure(figsize=(7.0, 2.6 + 0.25 * len(rows)), layout="constrained")
    wave, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, max(1.5, 0.4 * len(rows))])
    wave.plot([i / rate for i in range(len(samples))], samples / 32768, linewidth=0.5, color="#333333")
    wave.set_ylabel("sound")
    if len(rows) > 1:
        below.imshow(weights.float().numpy(), aspect="auto", cmap="gray", vmin=0, extent=(0, seconds, len(rows), 0))
        below.set_yticks([i + 0.5 for i in range(len(rows))], labels=[escape_math(name) for name in rows])
    else:
        places = weights.shape[1]
        below.step(
            [i * seconds / places for i in range(places + 1)],
            [*weights[0].tolist(), float(weights[0, -1])],
            where="post",
            color="#159a8c",
        )
        below.set_ylim(0, None)
        below.set_ylabel(escape_math(rows[0]))
    below.set_xlabel("seconds")
    below.set_xlim(0, seconds)
    save_figure(figure, file)
