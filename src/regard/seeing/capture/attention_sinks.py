"""Attention sinks: a learned number per head that takes its share of every row and gives nothing back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Softmax, Weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ...attention.energy_matrix import Scores


class SunkWeights(Weights):
    """w_ij = exp(e_ij) / (exp(s_h) + Σ_j exp(e_ij)): rows sum to less than one (gpt-oss; Agarwal et al. 2025).

    The sink only moves the row state from lse to log(exp(lse) + exp(s_h)); every weight follows from that.
    """

    def __init__(self, scores: Scores, sinks: Float[Tensor, " heads"], state: Tensor | None = None) -> None:
        super().__init__(scores, Softmax(), state)
        self._sinks = sinks.detach().to(scores.precision).expand(scores.batch).reshape(-1)

    def _own_state(self) -> Float[Tensor, "n rows"]:
        if self._own is None:
            lse = super()._own_state()
            sinks = self._sinks[torch.as_tensor(list(self._entries), device=lse.device)]
            # An empty row's state is +∞, and stays so: a sink alone gives no weight to any key.
            self._own = torch.logaddexp(lse, sinks[:, None])
        return self._own

    def dense(self) -> Float[Tensor, "*batch q k"]:
        """The whole matrix, without a graph for gradients."""
        return self.tile(slice(None), slice(None))
