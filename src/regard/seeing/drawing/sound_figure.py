"""A sound as a figure: its wave, and below it, on the same axis of time, where a model listened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .figure import plain, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from jaxtyping import Float, Int16
    from torch import Tensor


def save_listened(
    file: str | Path,
    samples: Int16[np.ndarray, "samples"],
    rate: int,
    weights: Float[Tensor, "rows places"],
    rows: Sequence[str],
) -> None:
    """One row of weights as a curve; several, one for each letter written, as a picture."""
    from matplotlib.figure import Figure

    if len(rows) != len(weights):
        raise ValueError(f"there are {len(weights)} rows of weights and {len(rows)} names for them")
    seconds, many = len(samples) / rate, len(rows) > 1
    figure = Figure(figsize=(7.0, 2.6 + 0.25 * len(rows)), layout="constrained")
    wave, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, max(1.5, 0.4 * len(rows))])
    wave.plot([i / rate for i in range(len(samples))], samples / 32768, linewidth=0.5, color="#333333")
    wave.set_ylabel("sound")
    if many:
        below.imshow(weights.float().numpy(), aspect="auto", cmap="gray", vmin=0, extent=(0, seconds, len(rows), 0))
        below.set_yticks([i + 0.5 for i in range(len(rows))], labels=[plain(name) for name in rows])
    else:
        places = weights.shape[1]
        below.step(
            [i * seconds / places for i in range(places + 1)],
            [*weights[0].tolist(), float(weights[0, -1])],
            where="post",
            color="#159a8c",
        )
        below.set_ylim(0, None)
        below.set_ylabel(plain(rows[0]))
    below.set_xlabel("seconds")
    below.set_xlim(0, seconds)
    save(figure, file)
