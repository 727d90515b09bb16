"""One step of a GRU or an LSTM, with inputs that are known before a loop and inputs that are made inside it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from . import rnn_gates
from .deferred_gradient import DeferredLinear

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Hidden = tuple["Tensor", ...]
"""A GRU's (h,) or an LSTM's (h, c), each [rows, width]."""


class RecurrentCell(nn.Module):
    """h' = cell(W x + V y + b, h): x is known before the loop (embedded tokens), y is made at every step (a context).

    W x + b is computed for all steps at once by `given`; what is left is `unroll`ed into a loop.
    """

    def __init__(self, kind: Literal["gru", "lstm"], early: int, late: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.size = size = (3 if kind == "gru" else 4) * width
        self.early = nn.Parameter(torch.empty(size, early)) if early else None
        self.late = nn.Parameter(torch.empty(size, late)) if late else None
        self.bias = nn.Parameter(torch.empty(size))
        self.recall = nn.Parameter(torch.empty(size, width))
        self.recall_bias = nn.Parameter(torch.empty(size)) if kind == "gru" else None  # an LSTM would only add the two
        bound = 1 / math.sqrt(width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        for square in self.recall.data.split(width):
            nn.init.orthogonal_(square)

    def given(self, x: Float[Tensor, "*batch early"]) -> Float[Tensor, "*batch gates"]:
        """What the early inputs say to the gates, for every step at once."""
        if self.early is None:
            raise ValueError("this cell has no early inputs")
        return nn.functional.linear(x, self.early, self.bias)

    def first(self, h: Float[Tensor, "rows width"]) -> Hidden:
        """The state that starts from h; an LSTM's memory starts empty."""
        return (h,) if self.kind == "gru" else (h, torch.zeros_like(h))

    def unroll(self, dtype: torch.dtype, also: Float[Tensor, "extra width"] | None = None) -> LoopCell:
        """Ready for a loop. `also` is a matrix whose product with h is wanted too: it rides along in one product."""
        return LoopCell(self, dtype, also)


class LoopCell:
    """A cell made ready for one loop: its weights' gradients are computed when the loop is done."""

    def __init__(self, cell: RecurrentCell, dtype: torch.dtype, also: Tensor | None) -> None:
        self._kind, self._size = cell.kind, cell.size
        matrix: Tensor = cell.recall
        bias: Tensor | None = cell.recall_bias
        if also is not None:
            matrix = torch.cat([matrix, also])
            bias = None if bias is None else torch.cat([bias, bias.new_zeros(also.shape[0])])
        self._recall = DeferredLinear(matrix.to(dtype), None if bias is None else bias.to(dtype))
        self._late = None
        if cell.late is not None:
            self._late = DeferredLinear(cell.late.to(dtype), cell.bias.to(dtype) if cell.early is None else None)

    def recall(self, hidden: Hidden) -> tuple[Float[Tensor, "rows gates"], Float[Tensor, "rows extra"]]:
        """What the state says to the gates, and its product with `also`."""
        both = self._recall(hidden[0])
        return both[:, : self._size], both[:, self._size :]

    def step(
        self,
        early: Float[Tensor, "rows gates"] | None,
        late: Float[Tensor, "rows late"] | None,
        recalled: Float[Tensor, "rows gates"],
        hidden: Hidden,
    ) -> Hidden:
        given = early
        if self._late is not None and late is not None:
            given = self._late(late) if early is None else early + self._late(late)
        if given is None:
            raise ValueError("a cell needs an input, early or late")
        if self._kind == "gru":
            return (rnn_gates.gru(given, recalled, hidden[0]),)
        return rnn_gates.lstm(given + recalled, hidden[1])
