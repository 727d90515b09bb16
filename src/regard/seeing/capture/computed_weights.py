"""Records of weights that a model computed in its own code: the matrix itself is kept, since no queries are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...attention import Bias
from ...attention.energies.energy_forms import DotForm
from ...attention.energies.lazy_energy_matrix import EnergyMatrix
from ...attention.normalizers.normalizer import Normalizer
from .call_inputs_and_output import Record

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor

IN_ITS_OWN_CODE = "softmax in its own code"
"""The origin of such a record."""


@dataclass(frozen=True, slots=True)
class Unchanged(Normalizer):
    """w_ij = e_ij: the energies are weights already, and a row need not sum to one."""

    absent = 0.0
    opaque = False

    def __call__(self, e: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return e

    def state(self, e: Tensor) -> Tensor:
        return e.new_ones(e.shape[:-1])

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return e


def record_of_weights(
    weights: Float[Tensor, "*batch q k"],
    v: Float[Tensor, "*batch k d_v"] | None = None,
    out: Float[Tensor, "*batch q d_v"] | None = None,
    origin: str = IN_ITS_OWN_CODE,
    dropout: float = 0.0,
    *,
    reason: str,
) -> Record:
    """A record of weights without queries and keys: energies of 0, with the weights added to them.

    `reason` says why they are kept as a whole.
    """
    w = weights.detach()
    *batch, queries, keys = w.shape
    zeros = w.new_zeros(1).expand
    energies = EnergyMatrix(
        zeros(*batch, queries, 1), zeros(*batch, keys, 1), DotForm(), tuple(batch), modifiers=(Bias(w),)
    )
    v = w.new_empty(*batch, keys, 0) if v is None else v.detach()
    out = w.new_empty(*batch, queries, 0) if out is None else out.detach()
    return Record(energies, v, out, origin, normalize=Unchanged(), dropout=dropout, matrix=reason)
