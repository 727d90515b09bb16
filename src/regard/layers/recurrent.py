"""Recurrent layers: GRU and LSTM cells for the loop of a decoder, and whole layers over padded sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from ..attention.torch_transforms import exact
from .kernels.loop import DeferredLinear, gru, lstm

if TYPE_CHECKING:
    from jaxtyping import Float, Int

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
        # an LSTM adds both biases, so it needs one
        self.recall_bias = nn.Parameter(torch.empty(size)) if kind == "gru" else None
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
            return (gru(inputs, recurrent, hidden[0]),)
        return lstm(inputs + recurrent, hidden[1])


class RecurrentLayer(nn.Module):
    """One layer of `nn.GRU` or `nn.LSTM`, with the same weights and results, over sentences of different lengths.

    For the backward direction each sentence is reversed within its own length, so no packing is needed and the GPU
    does not wait for the lengths. Outputs on padding are undefined.

    On a GPU this is cuDNN in float32 (products in TF32, where PyTorch allows it): under autocast it would run in
    float16, whatever dtype autocast has, and gradients summed over a batch overflow there. On a CPU it is a loop that
    computes the gradients of the weights once (`DeferredLinear`); PyTorch's computes them at every step.
    """

    def __init__(self, kind: Literal["gru", "lstm"], width_in: int, width: int, *, bidirectional: bool) -> None:
        super().__init__()
        make: type[nn.GRU | nn.LSTM] = nn.GRU if kind == "gru" else nn.LSTM
        self.kind, self.width = kind, width
        self.directions = cast(
            "list[nn.RNNBase]",
            nn.ModuleList(make(width_in, width, batch_first=True) for _ in range(2 if bidirectional else 1)),
        )
        for _, recurrent, *_ in (direction.all_weights[0] for direction in self.directions):
            for square in recurrent.data.split(width):
                nn.init.orthogonal_(square)

    def forward(
        self, x: Float[Tensor, "batch time width_in"], lengths: Int[Tensor, "batch"]
    ) -> tuple[Float[Tensor, "batch time out"], Float[Tensor, "batch out"]]:
        """All states, and the last of each sentence (for the backward direction, the state at its first word)."""
        time = torch.arange(x.shape[1], device=x.device)
        last = (lengths - 1)[:, None]  # [batch, 1]
        outputs, ends = [], []
        for number, rnn in enumerate(self.directions):
            reverse = None if number == 0 else torch.where(time <= last, last - time, time)[..., None]
            out = self._run(rnn, x if reverse is None else x.take_along_dim(reverse, 1))
            ends.append(out.take_along_dim(last[..., None], 1)[:, 0])
            outputs.append(out if reverse is None else out.take_along_dim(reverse, 1))
        return (outputs[0], ends[0]) if len(outputs) == 1 else (torch.cat(outputs, -1), torch.cat(ends, -1))

    def _run(self, rnn: nn.RNNBase, x: Float[Tensor, "batch time width_in"]) -> Float[Tensor, "batch time width"]:
        if x.is_cuda:
            with exact(x.device):
                out: Tensor = rnn(x.to(rnn.all_weights[0][0].dtype))[0]
            return out
        w, u, b, b_u = rnn.all_weights[0]
        inputs = nn.functional.linear(x, w, b)  # [batch, time, gates]
        recurrent = DeferredLinear(u.to(inputs.dtype), b_u.to(inputs.dtype))
        # The state stays in float32 at least: rounding it at every step would add up.
        h = c = x.new_zeros(x.shape[0], self.width, dtype=torch.promote_types(inputs.dtype, torch.float32))
        states = []
        for at in inputs.unbind(1):
            if self.kind == "gru":
                h = gru(at, recurrent(h), h)
            else:
                h, c = lstm(at + recurrent(h), c)
            states.append(h)
        return torch.stack(states, 1).to(w.dtype)  # that of the model: bfloat16 after `model.bfloat16()`
