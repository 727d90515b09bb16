"""Multi-head attention, and the layers of the Transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from ..attention import attend
from ..attention.energies import ScaledDot
from ..attention.masks import causal
from ..attention.modifiers import Alibi, Modified
from .kernels.packed_products import Dropout, linear
from .positions import RotaryPositions

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from ..attention.energies import Energy, LearnedEnergy
    from ..attention.masks import Mask
    from ..attention.weights import Weights


class MultiHead(nn.Module):
    """MultiHead(x, m) = [z_1; …; z_H] W_O,  z_h = attend(x W_Q^h, m W_K^h, m W_V^h)  (Vaswani et al. 2017, 3.2.2).

    Without `memory` the sequence attends to itself; with it, to vectors `memory` wide. With fewer `key_heads` than
    `heads`, groups of query heads share keys and values (Ainslie et al. 2023). Any energy of regard will do; one that
    learns is shared by the heads and must be as wide as one head. `dropout` is the share of weights dropped while
    training. Unless `bias` is False, each of the four products adds one, which the paper's do not.
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


class FeedForward(nn.Sequential):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        super().__init__(first, nn.ReLU(), Dropout(dropout), second)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        first, relu, dropout, second = cast("tuple[nn.Linear, nn.ReLU, Dropout, nn.Linear]", tuple(self))
        return linear(second, dropout(relu(linear(first, x))))


class Residual(nn.Module):
    """post: norm(x + part(x)), as published; pre: x + part(norm(x)), which needs less warm-up (Xiong et al. 2020).

    For experiments that show what each is for, `norm` "none" leaves the norm out, and `adds` False the x + …
    """

    def __init__(self, width: int, norm: Literal["pre", "post", "none"], dropout: float, *, adds: bool = True) -> None:
        super().__init__()
        self.norm: nn.Module = nn.Identity() if norm == "none" else nn.LayerNorm(width)
        self.first, self.adds, self.dropout = norm != "post", adds, Dropout(dropout)

    @property
    def normalizes(self) -> bool:
        return isinstance(self.norm, nn.LayerNorm)

    def forward(
        self, x: Float[Tensor, "*batch width"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch width"]:
        out: Tensor = self.dropout(part(self.norm(x) if self.first else x))
        if self.adds:
            out = x + out
        return out if self.first else self.norm(out)


class TransformerLayer(nn.Module):
    """Self-attention, attention over annotations `memory` wide (none with `memory` 0), and feed-forward.

    `norm` and `positions` "none", `residual` and `scaled` False leave out what a Transformer normally has: layer norms,
    positions, x + part(x), the division of energies by √d. `regard break` shows what goes wrong without each.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        memory: int = 0,
        *,
        key_heads: int = 0,
        norm: Literal["pre", "post", "none"] = "pre",
        positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "sinusoidal",
        residual: bool = True,
        scaled: bool = True,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shared: Any = {"key_heads": key_heads or None, "dropout": attention_dropout}
        self.scaled, energy = scaled, ScaledDot() if scaled else ScaledDot(scale=1.0)
        own_energy = Modified(energy, Alibi(heads)) if positions == "alibi" else energy
        rotary = RotaryPositions(width // heads) if positions == "rotary" else None
        self.attention = MultiHead(width, heads, energy=own_energy, rotary=rotary, **shared)
        self.cross = MultiHead(width, heads, energy=energy, memory=memory, **shared) if memory else None
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_attention = Residual(width, norm, dropout, adds=residual)
        self.around_cross = Residual(width, norm, dropout, adds=residual) if memory else None
        self.around_feed_forward = Residual(width, norm, dropout, adds=residual)


class EncoderLayer(TransformerLayer):
    """Self-attention over all positions, then feed-forward."""

    def forward(self, x: Float[Tensor, "batch time width"], mask: Mask | None) -> Float[Tensor, "batch time width"]:
        x = self.around_attention(x, lambda y: self.attention(y, mask=mask)[0])
        out: Tensor = self.around_feed_forward(x, self.feed_forward)
        return out


KeysValues = tuple["Tensor", "Tensor"]
"""Keys and values, each [batch, key_heads, time, d]."""


class DecoderLayer(TransformerLayer):
    """Causal self-attention, attention over the annotations, then feed-forward.

    With `memory` 0 there are no annotations and no attention over them: the layer of a language model. `masked` False
    lets every position see those after it in `forward`, as an experiment; in `step` there are none after it.
    """

    def __init__(self, *sizes: int, masked: bool = True, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.mask = causal() if masked else None

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        annotations: Float[Tensor, "batch places memory"],
        mask: Mask | None,
        *,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "batch time width"], Weights | None]:
        """Every position at once; a position sees itself and those before it."""
        x = self.around_attention(x, lambda y: self.attention(y, mask=self.mask)[0])
        source = None if self.cross is None else self.cross.keys(annotations)
        return self._rest(x, source, mask, weights)

    def step(
        self,
        x: Float[Tensor, "rows n width"],
        cache: KeysValues,
        source: KeysValues | None,
        mask: Mask | None,
        *,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "rows n width"], KeysValues, Weights | None]:
        """The next position, or the next few, and the cache with their keys and values.

        `source` has one entry per sentence and x one per row: the beams of a sentence share its keys and values, so
        they are passed as its queries.
        """
        position = cache[0].shape[2]

        def self_attention(y: Tensor) -> Tensor:
            nonlocal cache
            k, v = self.attention.keys(y, position)
            cache = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            energy = None
            if isinstance(self.attention.energy, Modified):
                # ALiBi needs the position of the query, which is not 0 here.
                energy = Modified(self.attention.energy.energy, Alibi(self.attention.heads, offset=position))
            mask = None if y.shape[1] == 1 else causal(position)  # the last position sees the whole cache
            return self.attention.look(y, *cache, energy=energy, mask=mask, first=position)[0]

        x = self.around_attention(x, self_attention)
        if source is None:
            x, _ = self._rest(x, None, mask, weights)
            return x, cache, None
        beams = x.reshape(source[0].shape[0], -1, x.shape[-1])  # [sentences, beams · n, width]
        beams, cross_weights = self._rest(beams, source, mask, weights)
        return beams.reshape(x.shape), cache, cross_weights

    def _rest(
        self, x: Tensor, source: KeysValues | None, mask: Mask | None, weights: bool
    ) -> tuple[Tensor, Weights | None]:
        """Attention over the annotations, and feed-forward."""
        cross_weights = None
        if self.cross is not None and self.around_cross is not None and source is not None:
            (k, v), cross = source, self.cross

            def cross_attention(y: Tensor) -> Tensor:
                nonlocal cross_weights
                z, cross_weights = cross.look(y, k, v, mask=mask, weights=weights)
                return z

            x = self.around_cross(x, cross_attention)
        return self.around_feed_forward(x, self.feed_forward), cross_weights
