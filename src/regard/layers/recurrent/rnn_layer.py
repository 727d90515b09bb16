"""A GRU or LSTM over padded sentences, in one direction or both, without packing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import nn

from ...attention.torch_transforms import exact
from . import rnn_gates
from .deferred_gradient import DeferredLinear

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


class FloatGRU(nn.GRU):
    """`nn.GRU` that PyTorch's dynamic quantization leaves as it is: `RecurrentLayer` reads its matrices."""


class FloatLSTM(nn.LSTM):
    """`nn.LSTM` that PyTorch's dynamic quantization leaves as it is: `RecurrentLayer` reads its matrices."""


class RecurrentLayer(nn.Module):
    """One layer of `nn.GRU` or `nn.LSTM`, with the same weights and results, over sentences of different lengths.

    For the backward direction each sentence is reversed within its own length, so no packing is needed and the GPU
    does not wait for the lengths. Outputs on padding are undefined.

    On a GPU this is cuDNN in float32 (products in TF32, where PyTorch allows it): under autocast it would run in
    float16, whatever dtype autocast has, and gradients summed over a batch overflow there. On a CPU it is a loop that
    computes the gradients of the weights once (`deferred_gradient.py`); PyTorch's computes them at every step.
    """

    def __init__(self, kind: Literal["gru", "lstm"], width_in: int, width: int, *, bidirectional: bool) -> None:
        super().__init__()
        make: type[nn.GRU | nn.LSTM] = FloatGRU if kind == "gru" else FloatLSTM
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
                h = rnn_gates.gru(at, recurrent(h), h)
            else:
                h, c = rnn_gates.lstm(at + recurrent(h), c)
            states.append(h)
        return torch.stack(states, 1).to(w.dtype)  # that of the model: bfloat16 after `model.bfloat16()`
