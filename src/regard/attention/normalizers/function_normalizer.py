"""A normalizer given as a function of energies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..part import argument_name, takes
from ..torch_transforms import readable, traced
from .normalizer import Normalizer, empty_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


MASKED = -1e30
"""The energy of a masked key where a function gets no mask. With −∞ the gradient of a learned factor would be 0 · ∞."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionNormalizer(Normalizer):
    """w_i = function(e_i) or function(e_i, mask_i), for rows of all keys: [..., T_k] in, [..., T_k] out.

    A function of the energies alone is given −10³⁰ for masked keys. A function of energies and mask is given 0 for
    them, and the mask says which they are (True may be seen). Their weights are set to 0 in either case. A row in which
    every key is masked is given as zeros, so that nothing divides by zero, and its weights are set to 0.
    """

    function: Callable[..., Tensor]
    nonnegative = False
    pointwise = False

    def __post_init__(self) -> None:
        if not (takes(self.function, 1) or takes(self.function, 2)):
            raise TypeError(f"normalize takes a function of (energies) or (energies, mask), got {self.function!r}")

    def __call__(self, e: Tensor) -> Tensor:
        if not e.shape[-1]:
            return e
        masked = e == -torch.inf
        # A second argument that may be left out is the mask only if it is called so: F.softmax has `dim` there.
        if not takes(self.function, 1) or argument_name(self.function, 1) == "mask":
            arguments: tuple[Tensor, ...] = e.masked_fill(masked, 0), ~masked
        else:
            arguments = (e.masked_fill(masked, MASKED).masked_fill(empty_rows(e), 0),)
        w = self.function(*arguments)
        if not isinstance(w, torch.Tensor) or w.shape != e.shape:
            shape = list(w.shape) if isinstance(w, torch.Tensor) else type(w).__name__
            raise ValueError(f"normalize gave {shape}; expected weights of the energies' shape, {list(e.shape)}")
        return w.to(e.dtype).masked_fill(masked, 0)

    def state(self, e: Tensor) -> Tensor:
        return e.new_zeros(e.shape[:-1])

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return self(e)

    def check_rows(self, rows: Callable[[], Tensor]) -> None:
        if traced():
            return
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            e = rows()
            if not readable(e) or e.shape[-2] < 2 or not e.numel():
                return
            e = e.detach()[(0,) * (e.dim() - 2)][:2]
            beside = self(e)[1]
            alone, again = (self(e[1:])[0] for _ in range(2))
        if not torch.isclose(alone, again, equal_nan=True).all():
            return  # it draws random numbers
        rounding = 1e-3 * float(beside.nan_to_num(0, 0, 0).abs().amax())
        if not torch.isclose(beside, alone, rtol=0, atol=rounding, equal_nan=True).all():
            raise ValueError(
                "this normalizer gives one row of energies different weights beside different rows; it must work along "
                "the last dimension, the keys, alone (dim=-1)"
            )
