"""The gates of the GRU and the LSTM, in the order of PyTorch's `nn.GRU` and `nn.LSTM`; on a GPU one kernel each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...attention.kernels import has_triton
from ...attention.parts import no_kernel

if TYPE_CHECKING:
    from jaxtyping import Float


def gru(
    inputs: Float[Tensor, "*batch 3*width"],
    recurrent: Float[Tensor, "*batch 3*width"],
    h: Float[Tensor, "*batch width"],
) -> Float[Tensor, "*batch width"]:
    """r, z = σ(inputs + recurrent);  n = tanh(inputs_n + r ⊙ recurrent_n);  h' = (1 − z) ⊙ n + z ⊙ h  (Cho 2014).

    `inputs` is W x + b and `recurrent` is U h + b'. Both hold r, z and n, in this order. As in PyTorch and cuDNN r is
    applied after U, and z is 1 − z of Bahdanau et al. (2015).
    """
    if has_triton(h) and no_kernel() is None:
        new: Tensor = _TritonGRU.apply(inputs, recurrent, h)
        return new
    width = h.shape[-1]
    inputs, recurrent = inputs.to(h.dtype), recurrent.to(h.dtype)
    r, z = torch.sigmoid(inputs[..., : 2 * width] + recurrent[..., : 2 * width]).chunk(2, dim=-1)
    n = torch.tanh(torch.addcmul(inputs[..., 2 * width :], r, recurrent[..., 2 * width :]))
    return torch.lerp(n, h, z)  # n + z (h − n)


def lstm(
    total: Float[Tensor, "*batch 4*width"],
    c: Float[Tensor, "*batch width"],
    added: Float[Tensor, "*batch width"] | None = None,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """i, f, o = σ(·);  g = tanh(·);  c' = f ⊙ c + i ⊙ g (+ added);  h' = o ⊙ tanh(c')  (Hochreiter & Schmidhuber 1997).

    `total` = W x + U h + b holds i, f, g and o, in this order. Returns (h', c').
    """
    if added is None and has_triton(c) and no_kernel() is None:
        h, new = _TritonLSTM.apply(total, c)
        return h, new
    i, f, g, o = total.to(c.dtype).chunk(4, dim=-1)
    new = torch.addcmul(torch.sigmoid(f) * c, torch.sigmoid(i), torch.tanh(g))
    new = new if added is None else new + added
    return torch.sigmoid(o) * torch.tanh(new), new


class _TritonGRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
        from .gates_triton import gru_forward

        new, saved = gru_forward(inputs, recurrent, h)
        ctx.save_for_backward(*saved)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from .gates_triton import gru_backward

        return gru_backward(g, *ctx.saved_tensors)


class _TritonLSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        from .gates_triton import lstm_forward

        h, new, saved = lstm_forward(total, c)
        ctx.save_for_backward(*saved)
        return h, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gh: Tensor, gc: Tensor) -> tuple[Tensor, Tensor]:
        from .gates_triton import lstm_backward

        return lstm_backward(gh, gc, *ctx.saved_tensors)
