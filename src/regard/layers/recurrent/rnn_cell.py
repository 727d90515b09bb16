"""GRU and LSTM cells for a loop: some inputs are known before the loop, others are computed inside it."""

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
    """h' = cell(W x + V y + b, h): x is known before the loop (embedded tokens), y at each step (a context).

    `input_gates` computes W x + b for all steps at once; `unroll` gives a `LoopCell` for the rest.
    """

    def __init__(self, kind: Literal["gru", "lstm"], early: int, late: int, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.size = size = (3 if kind == "gru" else 4) * width
        self.early = nn.Parameter(torch.empty(size, early)) if early else None
        self.late = nn.Parameter(torch.empty(size, late)) if late else None
        self.bias = nn.Parameter(torch.empty(size))
        self.recall = nn.Parameter(torch.empty(size, width))
        self.recall_bias = (
            nn.Parameter(torch.empty(size)) if kind == "gru" else None
        )  # an LSTM adds both, so it needs one
        bound = 1 / math.sqrt(width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        for square in self.recall.data.split(width):
            nn.init.orthogonal_(square)

    def input_gates(self, x: Float[Tensor, "*batch early"]) -> Float[Tensor, "*batch gates"]:
        """W x + b, for all steps at once."""
        if self.early is None:
            raise ValueError("this cell has no early inputs")
        return nn.functional.linear(x, self.early, self.bias)

    def first(self, h: Float[Tensor, "rows width"]) -> Hidden:
        """The initial state with hidden vector h; an LSTM's memory cell is zero."""
        return (h,) if self.kind == "gru" else (h, torch.zeros_like(h))

    def unroll(
        self,
        dtype: torch.dtype,
        also: Float[Tensor, "extra width"] | None = None,
        mask: Float[Tensor, "rows width"] | None = None,
    ) -> LoopCell:
        """The cell for one loop. `also` is a matrix to multiply h with in the same product; `mask`, for dropout that is
        the same at every step, multiplies h before it."""
        return LoopCell(self, dtype, also, mask)


def loop_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a loop over x: that of autocast where it is on. Casting once is cheaper than at every step."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class LoopCell:
    """A cell for one loop: the gradients of its weights are computed once, after the loop."""

    def __init__(self, cell: RecurrentCell, dtype: torch.dtype, also: Tensor | None, mask: Tensor | None) -> None:
        self._kind, self._size, self._mask = cell.kind, cell.size, mask
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
        """U h + b', and the product of h with `also`."""
        both = self._recall(hidden[0] if self._mask is None else hidden[0] * self._mask)
        return both[:, : self._size], both[:, self._size :]

    def step(
        self,
        early: Float[Tensor, "rows gates"] | None,
        late: Float[Tensor, "rows late"] | None,
        recurrent: Float[Tensor, "rows gates"],
        hidden: Hidden,
    ) -> Hidden:
        inputs = early
        if self._late is not None and late is not None:
            inputs = self._late(late) if early is None else early + self._late(late)
        if inputs is None:
            raise ValueError("a cell needs an input, early or late")
        if self._kind == "gru":
            return (rnn_gates.gru(inputs, recurrent, hidden[0]),)
        return rnn_gates.lstm(inputs + recurrent, hidden[1])
