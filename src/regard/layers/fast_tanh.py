"""tanh that does not spend a recurrent loop's time on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def is_wide(x: Tensor) -> bool:
    """Whether a number has digits enough for 2 σ(2x) − 1."""
    return x.dtype in (torch.float32, torch.float64)


def tanh_(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh(x) = 2 σ(2x) − 1, in place: on a CPU PyTorch's sigmoid takes a sixth of the time of its tanh.

    The error is about that of one rounding of a number between 1 and 2. In half precision that would be too much. Where
    autograd records, it is PyTorch's own, whose gradient needs the result only.
    """
    if x.device.type != "cpu" or not is_wide(x) or (x.requires_grad and torch.is_grad_enabled()):
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)
