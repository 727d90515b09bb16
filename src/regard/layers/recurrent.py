"""Recurrent cells and layers, the LSTM with attention over its own past (LSTMN), and the windows of local attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor, nn

from ..attention.energies import Additive
from ..attention.parts import exact
from ..attention.step import Memory, attend_step
from .kernels.gates import gru, lstm
from .kernels.packed_products import multiply

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Hidden = tuple["Tensor", ...]
"""A GRU's (h,) or an LSTM's (h, c), each [rows, width]."""


class RecurrentCell(nn.Module):
    """h' = cell(W x + V y + b, h): x is known before the loop (embedded tokens), y at each step (a context).

    `input_gates` computes W x + b for all steps at once; calling the cell does the rest.
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

    def forward(
        self,
        gates: Float[Tensor, "rows gates"] | None,
        hidden: Hidden,
        late: Float[Tensor, "rows late"] | None = None,
        *,
        mask: Float[Tensor, "rows width"] | None = None,
        added: Float[Tensor, "rows width"] | None = None,
    ) -> Hidden:
        """The next state, from the input gates W x + b of this step (None: b alone) and `late`, y.

        `mask`, for dropout that is the same at every step, multiplies h where U reads it. `added` is added to an LSTM's
        memory cell.
        """
        h = hidden[0] if mask is None else hidden[0] * mask
        recurrent = multiply(h.to(self.recall.dtype), self.recall, self.recall_bias)
        if gates is None:
            gates = self.bias
        if self.late is not None and late is not None:
            gates = gates + multiply(late.to(self.late.dtype), self.late, None)
        if self.kind == "gru":
            return (gru(gates, recurrent, hidden[0]),)
        return lstm(gates + recurrent, hidden[1], added)


def loop_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a loop over x: that of autocast where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def wide(x: Tensor) -> Tensor:
    """float32 at least, as states are: rounding them at every step would add up."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RecurrentLayer(nn.Module):
    """One layer of `nn.GRU` or `nn.LSTM`, with the same weights and results, over sentences of different lengths.

    For the backward direction each sentence is reversed within its own length, so no packing is needed and the GPU
    does not wait for the lengths. Outputs on padding are undefined.

    On a GPU this is cuDNN in float32 (products in TF32, where PyTorch allows it): under autocast it would run in
    float16, whatever dtype autocast has, and gradients summed over a batch overflow there. On a CPU it is a loop.
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
        h = c = wide(inputs.new_zeros(x.shape[0], self.width))
        states = []
        for at in inputs.unbind(1):
            recurrent = nn.functional.linear(h.to(u.dtype), u, b_u)
            if self.kind == "gru":
                h = gru(at, recurrent, h)
            else:
                h, c = lstm(at + recurrent, c)
            states.append(h)
        return torch.stack(states, 1).to(w.dtype)  # that of the model: bfloat16 after `model.bfloat16()`


@dataclass
class LSTMNState:
    """An LSTMN between two steps: its tapes, with keys W_h h_i and values [h_i; c_i], and h̃_{t−1}."""

    tape: Memory
    summary: Float[Tensor, "rows width"]

    def select(self, rows: Int[Tensor, "chosen"]) -> LSTMNState:
        """The state of these rows; for decoding, without gradients."""
        return LSTMNState(self.tape.select(rows), self.summary[rows])


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

    def start(self, rows: int, room: int, first: Float[Tensor, "rows width"] | None) -> LSTMNState:
        """The state before the first of at most `room` steps."""
        nothing = wide(self.energy.weight.new_zeros(rows, 0, 2 * self.width))
        state = LSTMNState(
            Memory(self.energy, nothing[..., : self.width], nothing, room=room + 1), nothing.new_zeros(rows, self.width)
        )
        if first is not None:
            h, c = self.cell.first(first)
            state.tape.write(h, torch.cat([h, c], -1))
        return state

    def step(
        self,
        x: Float[Tensor, "rows width_in"],
        state: LSTMNState,
        *,
        gates: Float[Tensor, "rows gates"] | None = None,
        late: Float[Tensor, "rows late"] | None = None,
        added: Float[Tensor, "rows width"] | None = None,
    ) -> tuple[Float[Tensor, "rows width"], Float[Tensor, "rows width"]]:
        """h_t and c_t, which are written to the tapes. `gates` is W x_t + b, where it is known.

        `late` is one more input of the gates (shallow fusion); `added` is added to c_t (deep fusion).
        """
        x = x.to(self.energy.query.weight.dtype)  # the states of the layer below are float32 at least
        q = torch.cat([x, state.summary.to(x.dtype)], -1)
        h, c = attend_step(q, state.tape)[0].chunk(2, -1)  # h̃, c̃
        state.summary = h
        h, c = self.cell(self.cell.input_gates(x) if gates is None else gates, (h, c), late, added=added)
        state.tape.write(h, torch.cat([h, c], -1))
        return h, c

    def forward(
        self, x: Float[Tensor, "batch time width_in"], first: Float[Tensor, "batch width"] | None = None
    ) -> tuple[Float[Tensor, "batch time width"], Float[Tensor, "batch time width"]]:
        """The hidden tape and the memory tape, without `first`."""
        x = x.to(self.energy.query.weight.dtype)
        state, gates = self.start(x.shape[0], x.shape[1], first), self.cell.input_gates(x)
        steps = [self.step(x_t, state, gates=w_t) for x_t, w_t in zip(x.unbind(1), gates.unbind(1), strict=True)]
        h, c = (torch.stack(tape, 1).to(x.dtype) for tape in zip(*steps, strict=True))
        return h, c


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
        self.inner = nn.Linear(width, width, bias=False) if kind == "local-p" else None
        self.outer = nn.Linear(width, 1, bias=False) if kind == "local-p" else None

    def forward(
        self,
        h: Float[Tensor, "batch beams width"],
        position: int | Int[Tensor, "batch"],
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
