"""Multi-head attention: several small attentions side by side, over the sequence itself or over a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..attention import ScaledDot, attend
from .kernels.packed import linear

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..attention import Energy, Mask, Weights
    from ..attention.energies.learned_energies import LearnedEnergy
    from ..attention.energies.modifiers import Modified
    from .positions import RotaryPositions


class MultiHead(nn.Module):
    """MultiHead(x, m) = [z_1; …; z_H] W_O,  z_h = attend(x W_Q^h, m W_K^h, m W_V^h)  (Vaswani et al. 2017, 3.2.2).

    Without `memory` the sequence attends to itself; with it, to vectors `memory` wide. With fewer `key_heads` than
    `heads`, groups of query heads share keys and values (Ainslie et al. 2023). Any energy of regard will do; one that
    learns is shared by the heads and must be as wide as one head. `dropout` is the share of weights dropped while
    training.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_heads: int | None = None,
        memory: int | None = None,
        energy: Energy | LearnedEnergy | Modified | None = None,
        rotary: RotaryPositions | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        key_heads = heads if key_heads is None else key_heads
        if width % heads:
            raise ValueError(f"width {width} does not divide into {heads} heads")
        if key_heads < 1 or heads % key_heads:
            raise ValueError(f"{heads} heads cannot share {key_heads} key/value heads; it must divide their number")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability, 0 ≤ dropout < 1; got {dropout}")
        self.heads, self.key_heads, self.head_width = heads, key_heads, width // heads
        self.energy = ScaledDot() if energy is None else energy
        self.rotary, self.dropout = rotary, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width if memory is None else memory, 2 * key_heads * self.head_width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        for layer in (self.query, self.key_value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def keys(
        self,
        memory: Float[Tensor, "batch keys memory"],
        first: int = 0,
    ) -> tuple[Float[Tensor, "batch key_heads keys d"], Float[Tensor, "batch key_heads keys d"]]:
        """Keys and values of a memory, for `look`; `first` is the position of its first vector."""
        both = linear(self.key_value, memory).unflatten(-1, (2, self.key_heads, self.head_width))  # [B, K, 2, heads, d]
        k, v = both.movedim(1, 3).unbind(1)  # each [B, heads, K, d]
        return (k if self.rotary is None else self.rotary(k, first)), v

    def look(
        self,
        x: Float[Tensor, "batch queries width"],
        k: Float[Tensor, "batch key_heads keys d"],
        v: Float[Tensor, "batch key_heads keys d"],
        *,
        mask: Mask | None = None,
        energy: Modified | None = None,
        first: int = 0,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "batch queries width"], Weights | None]:
        """Attend from x to keys and values that are already there; `first` is the position of the first query.

        `energy` stands in for the layer's own where that depends on the position, as ALiBi's does in a cache.
        """
        q = linear(self.query, x).unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)  # [B, heads, Q, d]
        if self.rotary is not None:
            q = self.rotary(q, first)
        energy_function = self.energy if energy is None else energy
        dropout, w = self.dropout if self.training else 0.0, None
        if weights:
            z, w = attend(q, k, v, energy=energy_function, mask=mask, dropout=dropout, weights=True)
        else:
            z = attend(q, k, v, energy=energy_function, mask=mask, dropout=dropout)
        z = z.transpose(1, 2).flatten(-2)  # [B, Q, heads · d]
        return linear(self.output, z), w

    def forward(
        self,
        x: Float[Tensor, "batch queries width"],
        memory: Float[Tensor, "batch keys memory"] | None = None,
        *,
        mask: Mask | None = None,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "batch queries width"], Weights | None]:
        k, v = self.keys(x if memory is None else memory)
        return self.look(x, k, v, mask=mask, weights=weights)
