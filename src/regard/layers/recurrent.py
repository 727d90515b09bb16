"""Recurrent cells and layers, and the LSTM with attention over its own past (LSTMN)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from ..attention.blocks import exact
from ..attention.energies import Additive
from .kernels.loop import DeferredLinear, gru, lstm
from .kernels.tape import MemoryTape

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


LSTMNInput = tuple[Tensor, Tensor]
"""The part of the gates, [..., 4 width], and of the query, [..., width], that depends on the input x."""


@dataclass
class LSTMNLoop:
    """One pass of an LSTMN over a sequence: its tape, and its matrices."""

    tape: MemoryTape  # keys W_h h_i, values [h_i; c_i]
    cell: LoopCell
    key: DeferredLinear
    query: Float[Tensor, "rows width"]  # W_h̃ h̃_{t−1}

    def select(self, rows: Int[Tensor, "chosen"]) -> LSTMNLoop:
        """The loop of these rows; for decoding, without gradients."""
        return replace(self, tape=self.tape.select(rows), query=self.query[rows])


class LSTMN(nn.Module):
    """One layer of Long Short-Term Memory-Networks (Cheng, Dong and Lapata 2016, arXiv 1601.06733, section 3.1).

        a_i^t = v · tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t−1}),   s^t = softmax(a^t) over i < t
        h̃_t = Σ_i s_i^t h_i,   c̃_t = Σ_i s_i^t c_i           the hidden tape and the memory tape
        i_t, f_t, o_t = σ(W [h̃_t; x_t] + b),   ĉ_t = tanh(W_c [h̃_t; x_t] + b_c)
        c_t = f_t ⊙ c̃_t + i_t ⊙ ĉ_t,   h_t = o_t ⊙ tanh(c_t)

    Before the first step the tapes are empty and h̃, c̃ are zero, unless `first` is their first entry. `late` is the
    width of an input of the gates that is computed at each step. Step t does not depend on later ones, so padding at
    the end of a sequence does not change the states before it.
    """

    def __init__(self, width_in: int, width: int, *, late: int = 0) -> None:
        super().__init__()
        self.width_in, self.width = width_in, width
        self.energy = Additive(width_in + width, width, width)  # its query is [x_t; h̃_{t−1}]
        self.cell = RecurrentCell("lstm", width_in, late, width)

    def inputs(self, x: Float[Tensor, "*batch width_in"]) -> LSTMNInput:
        """W x + b of the gates and W_x x of the queries, for all steps at once."""
        x = x.to(self.energy.query.weight.dtype)  # the states of the layer below are float32 at least
        return self.cell.input_gates(x), nn.functional.linear(x, self.energy.query.weight[:, : self.width_in])

    def begin(self, rows: int, room: int, dtype: torch.dtype, first: Float[Tensor, "rows width"] | None) -> LSTMNLoop:
        """The state before the first of at most `room` steps. Products are in `dtype`, tapes in float32 at least."""
        weight = self.energy.weight.to(torch.promote_types(dtype, torch.float32))
        loop = LSTMNLoop(
            MemoryTape.empty(weight, rows, room + (first is not None), 2 * self.width),
            self.cell.unroll(dtype, also=self.energy.query.weight[:, self.width_in :]),
            DeferredLinear(self.energy.key.weight.to(dtype)),
            weight.new_zeros(rows, self.width),
        )
        if first is not None:
            self._write(loop, *self.cell.first(first))
        return loop

    def step(
        self,
        loop: LSTMNLoop,
        x: LSTMNInput,
        late: Float[Tensor, "rows late"] | None = None,
        added: Float[Tensor, "rows width"] | None = None,
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
        """h_t and c_t. `late` is an input of the gates (shallow fusion); with `added` (deep fusion)

        c_t = added + f_t ⊙ c̃_t + i_t ⊙ ĉ_t.
        """
        if late is not None and added is not None:
            raise ValueError("a step takes late or added, not both: fusion is shallow or deep")
        gates, query = x
        h, c = loop.tape.look(query + loop.query).chunk(2, -1)  # h̃, c̃
        recurrent, loop.query = loop.cell.recall((h, c))
        if added is None:
            h, c = loop.cell.step(gates, late, recurrent, (h, c))
        else:
            i, f, new, o = (gates + recurrent).to(c.dtype).chunk(4, -1)
            c = added + f.sigmoid() * c + i.sigmoid() * new.tanh()
            h = o.sigmoid() * c.tanh()
        self._write(loop, h, c)
        return h, c

    def _write(self, loop: LSTMNLoop, h: Float[Tensor, "rows width"], c: Float[Tensor, "rows width"]) -> None:
        loop.tape.write(loop.key(h), torch.cat([h, c], -1))

    def forward(
        self, x: Float[Tensor, "batch time width_in"], first: Float[Tensor, "batch width"] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time width"]]:
        """The hidden tape and the memory tape, without `first`."""
        gates, queries = self.inputs(x)
        loop = self.begin(len(x), x.shape[1], gates.dtype, first)
        steps = [self.step(loop, at) for at in zip(gates.unbind(1), queries.unbind(1), strict=True)]
        h, c = (torch.stack(tape, 1).to(self.energy.query.weight.dtype) for tape in zip(*steps, strict=True))
        return h, c
