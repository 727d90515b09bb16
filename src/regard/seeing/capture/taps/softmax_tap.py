"""softmax called by an attention module of its own code: the weights as they were computed, kept whole.

The last resort, for models that write attention out: such a model has stored the matrix anyway. The output is not seen,
so there is no fidelity.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention import Bias, Proportional
from ....attention.energy_forms import DotForm
from ....attention.energy_matrix import EnergyMatrix
from .. import dispatch
from ..record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

ATTENTION = re.compile(r"attn|attention|\batt\b|_att\b|\batt_")


def places() -> Iterator[tuple[tuple[Any, str], Callable[..., Any]]]:
    yield (F, "softmax"), tapped
    yield (torch, "softmax"), tapped
    yield (torch.Tensor, "softmax"), tapped


def tapped(original: Callable[..., Tensor], input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> Tensor:
    with dispatch.quietly():  # F.softmax may be made of the others
        weights = original(input, dim, *args, **kwargs)
    ours = sys._getframe(2).f_globals.get("__name__", "").startswith("regard.")  # attend, which tells by itself
    if input.dim() in (3, 4) and dim in (-1, input.dim() - 1) and not ours:
        outer = dispatch.here.outer
        if outer is not None:
            outer.weights = weights
            return weights
        dispatch.attempt(lambda: written_out(weights), only=lambda name: bool(ATTENTION.search(name.lower())))
    return weights


def written_out(weights: Tensor, origin: str = "softmax in its own code") -> Record:
    """Weights that were given whole: no queries and keys, but a bias that is everything, w = w / Σw."""
    w = weights.detach()
    *batch, queries, keys = w.shape
    nothing = w.new_zeros(1).expand
    energies = EnergyMatrix(
        nothing(*batch, queries, 1), nothing(*batch, keys, 1), DotForm(), tuple(batch), modifiers=(Bias(w),)
    )
    v, out = w.new_empty(*batch, keys, 0), w.new_empty(*batch, queries, 0)
    return Record(energies, v, out, origin, normalize=Proportional())
