"""The learning rate of an update, as a function of its number: there is no state to store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..recipe.recipe_sections import TrainingSection


def rate(training: TrainingSection, update: int, cuts: int = 0) -> float:
    """The rate of update 1, 2, …: up linearly over `warmup` updates w, then down.

    - inverse square root (Vaswani et al. 2017, section 5.3): r · √(w / update);
    - cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) down to f · r, f the floor, at the last update n:
      r · (f + (1 − f)·½(1 + cos π(update−w)/(n−w)));
    - plateau: r · cut^cuts, `cuts` the number of times that the validation score stopped rising;
    - constant: r.
    """
    peak, warmup = training.rate, training.warmup
    if update < warmup:
        return peak * update / warmup
    if training.schedule == "inverse-square-root":
        return peak * math.sqrt(max(warmup, 1) / max(update, 1))
    if training.schedule == "cosine":
        past = (update - warmup) / max(training.updates - warmup, 1)
        return peak * (training.floor + (1 - training.floor) * (1 + math.cos(math.pi * min(past, 1.0))) / 2)
    if training.schedule == "plateau":
        return peak * training.cut**cuts
    return peak
