"""Local attention: a window of the source around one position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from ...attention.energies.float_linear import FloatLinear

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class LocalAttention(nn.Module):
    """The window of step t, and the weights within it (Luong et al. 2015, section 3.2).

    - local-m: the middle is p_t = t; the weights are a softmax over the places within D of it.
    - local-p: the middle is p_t = S σ(v · tanh(W h_t)), S the sentence's length; each weight of the softmax over the
      places within D of it is multiplied by exp(−(s − p_t)² / 2σ²), σ = D/2.

    Where a translation is longer than its source, the window of local-m stays at the last word.
    """

    def __init__(self, width: int, window: int, kind: Literal["local-m", "local-p"]) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"local attention needs a window of at least 1, got {window}")
        self.window = window
        self.inner = FloatLinear(width, width, bias=False) if kind == "local-p" else None
        self.outer = nn.Linear(width, 1, bias=False) if kind == "local-p" else None

    def forward(
        self,
        h: Float[Tensor, "batch beams width"],
        position: int,
        lengths: Int[Tensor, "batch"],
        places: Int[Tensor, "places"],
    ) -> tuple[Float[Tensor, "batch beams places"], Float[Tensor, "batch beams places"] | None]:
        """0 or −∞ to add to the energies, and the factor of the weights, if any."""
        if self.inner is None or self.outer is None:
            distance = places - (lengths - 1).clamp(max=position)[:, None, None]  # [batch, 1, places]
            return _closed(distance, self.window), None
        h = h.to(self.inner.weight.dtype)  # a state is float32 at least
        share = torch.sigmoid(self.outer(torch.tanh(self.inner(h))).float())  # [batch, beams, 1]
        distance = places - share * lengths[:, None, None]
        return _closed(distance, self.window), torch.exp(-2 * (distance / self.window) ** 2)  # 2σ² = D²/2


def _closed(distance: Tensor, window: int) -> Tensor:
    return torch.zeros_like(distance, dtype=torch.float32).masked_fill_(distance.detach().abs() > window, -torch.inf)
