"""Attention sinks: a learned number per head that takes its share of every row and gives nothing back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Softmax, Weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...attention.energies.lazy_energy_matrix import EnergyMatrix


class SinkWeights(Weights):
    """w_ij = exp(e_ij) / (exp(s_h) + Σ_j exp(e_ij)): rows sum to less than one (gpt-oss; Agarwal et al. 2025).

    The sink changes the row state from lse to log(exp(lse) + exp(s_h)); every weight follows from that.
    """

    def __init__(self, energies: EnergyMatrix, sinks: Float[Tensor, " heads"], state: Tensor | None = None) -> None:
        super().__init__(energies, Softmax(), state)
        self.sinks = sinks.detach().to(energies.precision).expand(energies.batch).reshape(-1)

    def compute_state(self) -> Float[Tensor, "n rows"]:
        lse = super().compute_state()
        assert self.sinks is not None
        sinks = self.sinks[torch.as_tensor(list(self.entries), device=lse.device)]
        # The state of an empty row is +∞, and stays so: the sink gives no weight to any key.
        return torch.logaddexp(lse, sinks[:, None])

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, without a graph for gradients."""
        return self.tile(slice(None), slice(None))
