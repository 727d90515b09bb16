"""The Transformer's layers: attention and feed-forward, each with its residual and its norm before or after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import nn

from ..attention import Alibi, Modified, ScaledDot, causal
from .dropout import Dropout
from .multihead_attention import MultiHead
from .positions import RotaryPositions

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from ..attention import Mask, Weights

    Positions = Literal["sinusoidal", "learned", "rotary", "alibi"]


class FeedForward(nn.Sequential):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for linear in (first, second):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        super().__init__(first, nn.ReLU(), Dropout(dropout), second)


class Residual(nn.Module):
    """post: norm(x + part(x)), as published; pre: x + part(norm(x)), which needs less warm-up (Xiong et al. 2020)."""

    def __init__(self, width: int, norm: Literal["pre", "post"], dropout: float) -> None:
        super().__init__()
        self.norm, self.first, self.dropout = nn.LayerNorm(width), norm == "pre", Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "*batch width"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch width"]:
        out: Tensor = x + self.dropout(part(self.norm(x))) if self.first else self.norm(x + self.dropout(part(x)))
        return out


def _self_attention(width: int, heads: int, key_heads: int, positions: Positions, dropout: float) -> MultiHead:
    return MultiHead(
        width,
        heads,
        key_heads=key_heads or None,
        energy=Modified(ScaledDot(), Alibi(heads)) if positions == "alibi" else None,
        rotary=RotaryPositions(width // heads) if positions == "rotary" else None,
        dropout=dropout,
    )


class EncoderLayer(nn.Module):
    """Self-attention over all places, then feed-forward."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        key_heads: int = 0,
        norm: Literal["pre", "post"] = "pre",
        positions: Positions = "sinusoidal",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = _self_attention(width, heads, key_heads, positions, attention_dropout)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_attention = Residual(width, norm, dropout)
        self.around_feed_forward = Residual(width, norm, dropout)

    def forward(self, x: Float[Tensor, "batch time width"], mask: Mask | None) -> Float[Tensor, "batch time width"]:
        x = self.around_attention(x, lambda y: self.attention(y, mask=mask)[0])
        out: Tensor = self.around_feed_forward(x, self.feed_forward)
        return out


KeysValues = tuple["Tensor", "Tensor"]
"""Keys and values, each [batch, key_heads, time, d]."""


class DecoderLayer(nn.Module):
    """Self-attention over what was written so far, attention over the annotations, then feed-forward.

    With `memory` 0 there are no annotations, and the attention over them is left out: a language model's layer.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        memory: int,
        *,
        key_heads: int = 0,
        norm: Literal["pre", "post"] = "pre",
        positions: Positions = "sinusoidal",
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = _self_attention(width, heads, key_heads, positions, attention_dropout)
        self.cross = (
            MultiHead(width, heads, key_heads=key_heads or None, memory=memory, dropout=attention_dropout)
            if memory
            else None
        )
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_attention = Residual(width, norm, dropout)
        self.around_cross = Residual(width, norm, dropout) if memory else None
        self.around_feed_forward = Residual(width, norm, dropout)

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        annotations: Float[Tensor, "batch places memory"],
        mask: Mask | None,
        *,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "batch time width"], Weights | None]:
        """Every position at once; a position sees itself and those before it."""
        x = self.around_attention(x, lambda y: self.attention(y, mask=causal())[0])
        return self._rest(x, None if self.cross is None else self.cross.keys(annotations), mask, weights)

    def step(
        self,
        x: Float[Tensor, "rows n width"],
        position: int,
        write: Callable[[Tensor, Tensor], KeysValues],
        source: KeysValues | None,
        mask: Mask | None,
        *,
        weights: bool = False,
    ) -> tuple[Float[Tensor, "rows n width"], Weights | None]:
        """The next position, or the next few. `write` adds keys and values to the cache and gives back all up to now.

        `source` has one entry per sentence and x one per row: the beams of a sentence share its keys and values, as
        if they were its queries.
        """

        def look(y: Tensor) -> Tensor:
            k, v = write(*self.attention.keys(y, position))
            moved = None
            if isinstance(self.attention.energy, Modified):
                # In a cache the query does not stand at position 0, which ALiBi has to know.
                moved = Modified(ScaledDot(), Alibi(self.attention.heads, offset=position))
            past = None if y.shape[1] == 1 else causal(position)  # one position sees all there is
            return self.attention.look(y, k, v, energy=moved, mask=past, first=position)[0]

        x = self.around_attention(x, look)
        if source is None:
            return self._rest(x, None, mask, weights)
        beams = x.reshape(source[0].shape[0], -1, x.shape[-1])  # [sentences, beams · n, width]
        beams, seen = self._rest(beams, source, mask, weights)
        return beams.reshape(x.shape), seen

    def _rest(
        self, x: Tensor, source: KeysValues | None, mask: Mask | None, weights: bool
    ) -> tuple[Tensor, Weights | None]:
        if self.cross is None or self.around_cross is None or source is None:
            return self.around_feed_forward(x, self.feed_forward), None
        (k, v), cross, seen = source, self.cross, None

        def look(y: Tensor) -> Tensor:
            nonlocal seen
            z, seen = cross.look(y, k, v, mask=mask, weights=weights)
            return z

        x = self.around_cross(x, look)
        return self.around_feed_forward(x, self.feed_forward), seen
