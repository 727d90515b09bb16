"""The LSTMN: an LSTM that keeps all its states, and attends over them in place of the last one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..attention import Additive
from .kernels.loop import DeferredLinear
from .kernels.tape import MemoryTape
from .recurrent import LoopCell, RecurrentCell

if TYPE_CHECKING:
    from jaxtyping import Float, Int

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
