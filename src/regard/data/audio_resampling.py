"""Sounds at another rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

CROSSINGS = 16  # zero crossings of the sinc on each side: what passes is flat to a few thousandths
ROLL_OFF = 0.95  # of the lower of the two rates' halves: above it the filter has begun to close


def resample(x: Float[np.ndarray, "samples"], rate: int, wanted: int) -> Float[np.ndarray, "resampled"]:
    """y(t) = Σ_k x[k] h(t·rate − k), h a sinc under a Hann window, at the times t = n / wanted (Smith 1984).

    h closes at the lower of both rates' halves, so that nothing above it comes back as something below. The times fall
    into wanted / gcd phases between samples, each with its own filter.
    """
    if rate == wanted:
        return x
    common = math.gcd(rate, wanted)
    phases, step = wanted // common, rate // common
    cut = min(1.0, wanted / rate) * ROLL_OFF
    reach = math.ceil(CROSSINGS / cut)
    taps = np.arange(-reach, reach + 1)
    count = -(-len(x) * wanted // rate)
    padded = np.pad(x, (reach, reach + step + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(taps))
    y = np.empty(count, x.dtype)
    for phase in range(min(phases, count)):
        base, rest = divmod(phase * step, phases)  # the sample before, and how far past it, in phases
        u = taps - rest / phases
        h = cut * np.sinc(cut * u) * np.where(np.abs(u) < reach, 0.5 + 0.5 * np.cos(np.pi * u / reach), 0)
        rows = windows[base::step][: len(range(phase, count, phases))]
        y[phase::phases] = rows @ h.astype(x.dtype)
    return y
