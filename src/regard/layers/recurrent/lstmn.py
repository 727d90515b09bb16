"""The LSTMN: an LSTM that keeps all it ever wrote, and attends over it in place of its last state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...attention import Additive
from .deferred_gradient import DeferredLinear
from .memory_tape import MemoryTape
from .rnn_cell import RecurrentCell

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .rnn_cell import LoopCell

    Given = tuple[Tensor, Tensor]
    """What an input says to the gates, [..., 4 width], and to the query, [..., width]."""


@dataclass
class LSTMNLoop:
    """One pass of an LSTMN over a sequence: its tapes, and its matrices made ready for the loop."""

    tape: MemoryTape  # keys W_h h_i, values [h_i; c_i]
    cell: LoopCell
    key: DeferredLinear
    asked: Float[Tensor, "rows width"]  # W_h̃ h̃_{t−1}

    def select(self, rows: Int[Tensor, "chosen"]) -> LSTMNLoop:
        """The same for these rows; for decoding, where nothing is learned."""
        return replace(self, tape=self.tape.select(rows), asked=self.asked[rows])


class LSTMN(nn.Module):
    """One layer of Long Short-Term Memory-Networks (Cheng, Dong and Lapata 2016, arXiv 1601.06733, section 3.1).

        a_i^t = v · tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t−1}),   s^t = softmax(a^t) over i < t
        h̃_t = Σ_i s_i^t h_i,   c̃_t = Σ_i s_i^t c_i           the hidden tape and the memory tape
        i_t, f_t, o_t = σ(W [h̃_t; x_t] + b),   ĉ_t = tanh(W_c [h̃_t; x_t] + b_c)
        c_t = f_t ⊙ c̃_t + i_t ⊙ ĉ_t,   h_t = o_t ⊙ tanh(c_t)

    Before the first step the tapes are empty and h̃, c̃ are zero; `first` puts a state on them to start from. `late`
    more inputs of the gates may be made at every step. What step t computes depends on nothing after it, so padding at
    the end of a sequence changes nothing before.
    """

    def __init__(self, width_in: int, width: int, *, late: int = 0) -> None:
        super().__init__()
        self.width_in, self.width = width_in, width
        self.energy = Additive(width_in + width, width, width)  # its query is [x_t; h̃_{t−1}]
        self.cell = RecurrentCell("lstm", width_in, late, width)

    def given(self, x: Float[Tensor, "*batch width_in"]) -> Given:
        """What the inputs say to the gates and to the queries, for every step at once."""
        return self.cell.given(x), nn.functional.linear(x, self.energy.query.weight[:, : self.width_in])

    def begin(self, rows: int, room: int, dtype: torch.dtype, first: Float[Tensor, "rows width"] | None) -> LSTMNLoop:
        """Ready for at most `room` steps; the products are computed in `dtype`, the tapes are float32 at least."""
        weight = self.energy.weight.to(torch.promote_types(dtype, torch.float32))
        reading = LSTMNLoop(
            MemoryTape(weight, rows, room + (first is not None), 2 * self.width),
            self.cell.unroll(dtype, also=self.energy.query.weight[:, self.width_in :]),
            DeferredLinear(self.energy.key.weight.to(dtype)),
            weight.new_zeros(rows, self.width),
        )
        if first is not None:
            self._write(reading, *self.cell.first(first))
        return reading

    def step(
        self,
        reading: LSTMNLoop,
        given: Given,
        late: Float[Tensor, "rows late"] | None = None,
        added: Float[Tensor, "rows width"] | None = None,
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
        """h_t and c_t. `added` goes into the memory as it is: c_t = added + f_t ⊙ c̃_t + i_t ⊙ ĉ_t.

        `late` enters the gates, where nothing is added: shallow fusion has the one, deep fusion the other.
        """
        if late is not None and added is not None:
            raise ValueError("a step takes late or added, not both: fusion is shallow or deep")
        gates, asks = given
        h, c = reading.tape.look(asks + reading.asked).chunk(2, -1)  # h̃, c̃
        recalled, reading.asked = reading.cell.recall((h, c))
        if added is None:
            h, c = reading.cell.step(gates, late, recalled, (h, c))
        else:
            i, f, new, o = (gates + recalled).to(c.dtype).chunk(4, -1)
            c = added + f.sigmoid() * c + i.sigmoid() * new.tanh()
            h = o.sigmoid() * c.tanh()
        self._write(reading, h, c)
        return h, c

    def _write(self, reading: LSTMNLoop, h: Float[Tensor, "rows width"], c: Float[Tensor, "rows width"]) -> None:
        reading.tape.write(reading.key(h), torch.cat([h, c], -1))

    def forward(
        self, x: Float[Tensor, "batch time width_in"], first: Float[Tensor, "batch width"] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time width"]]:
        """The hidden tape and the memory tape, without `first`."""
        gates, asks = self.given(x)
        reading = self.begin(len(x), x.shape[1], gates.dtype, first)
        steps = [self.step(reading, given) for given in zip(gates.unbind(1), asks.unbind(1), strict=True)]
        h, c = (torch.stack(tape, 1) for tape in zip(*steps, strict=True))
        return h, c
