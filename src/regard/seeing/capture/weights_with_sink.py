"""Attention sinks: a learned number per head that takes its share of every row and gives nothing back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Softmax, Weights
from ...attention.normalizers.normalizer import RowState

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...attention.energies.lazy_energy_matrix import EnergyMatrix


class SinkWeights(Weights):
    """w_ij = exp(e_ij) / (exp(s_h) + Σ_j exp(e_ij)): rows sum to less than one (gpt-oss; Agarwal et al. 2025).

    The sink changes the log-sum-exp of a row from lse to log(exp(lse) + exp(s_h)); every weight follows from that.
    """

    def __init__(self, energies: EnergyMatrix, sinks: Float[Tensor, " heads"], state: Tensor | None = None) -> None:
        super().__init__(energies, Softmax(), state)
        self.sinks = sinks.detach().to(energies.precision).expand(energies.batch).reshape(-1)

    def completed(self, state: RowState, unit: float = 1.0) -> RowState:
        assert self.sinks is not None
        sinks = self.sinks[torch.as_tensor(list(self.entries), device=state.rest.device), None]  # [n, 1]
        # The rest of an empty row is +∞, and stays so: the sink gives no weight to any key.
        if state.anchor is None:
            return RowState(torch.logaddexp(state.rest, sinks))
        anchor = torch.maximum(state.anchor, sinks / unit)
        keys = state.rest + (state.anchor - anchor) * unit
        return RowState(torch.logaddexp(keys, sinks - anchor * unit), anchor)

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, without a graph for gradients."""
        return self.tile(slice(None), slice(None))
