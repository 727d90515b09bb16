"""The exponential moving average of a model's parameters (`training.ema`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


class MovingAverage:
    """θ̄ ← d·θ̄ + (1 − d)·θ after every update n, with d = min(decay, (1 + n) / (10 + n)).

    The decay rises over the first updates, or the average would be of the random start (Polyak and Juditsky 1992 for
    the mean; the rising decay as in TensorFlow's ExponentialMovingAverage). Buffers are not averaged.
    """

    def __init__(self, model: nn.Module, decay: float, averages: list[Tensor] | None = None) -> None:
        self.parameters = list(model.parameters())
        self.decay = decay
        self.averages = [
            parameter.detach().clone() if averages is None else averages[n].to(parameter)
            for n, parameter in enumerate(self.parameters)
        ]

    @torch.no_grad()
    def update(self, n: int) -> None:
        decay = min(self.decay, (1 + n) / (10 + n))
        torch._foreach_lerp_(self.averages, [parameter.detach() for parameter in self.parameters], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averages as its parameters."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.averages)
        try:
            yield
        finally:
            self._set(kept)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([parameter.detach() for parameter in self.parameters], values)
