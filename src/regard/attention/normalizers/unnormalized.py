"""The energies themselves as weights: sums over the keys that are not averages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .normalizer import Normalizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Unnormalized(Normalizer):
    """w_ij = e_ij: z_i = Σ_j energy(q_i, k_j) v_j. A masked key weighs 0. State: 0, since a weight needs nothing else.

    With `Exact` the values of all equal keys are added up. Weights may be negative or exceed one and do not sum to one.
    So of their statistics the entropy has no meaning (it is NaN where a weight is negative); the others do.
    """

    absent = 0.0
    nonnegative = False
    opaque = False

    def __call__(self, e: Tensor) -> Tensor:
        return e

    def state(self, e: Tensor) -> Tensor:
        return e.new_zeros(e.shape[:-1])

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return e
