"""The gates of the GRU and the LSTM: the elementwise part of a step, after the matrix products.

Forward and backward are written out because a recurrence spends its time here: every elementwise operation costs a pass
over memory (CPU) or a kernel launch (GPU). On a GPU each is one Triton kernel. Gates are in the order of PyTorch's
`nn.GRU` and `nn.LSTM`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from ...attention.kernels import has_triton
from ...attention.torch_transforms import forward_mode, transformed
from ..fast_tanh import tanh_

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, h: Tensor) -> Tensor:
        new, saved = _gru_forward(inputs, recurrent, h)
        ctx.save_for_backward(*saved)
        return new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if has_triton(g):
            from .rnn_gates_triton import gru_backward

            return gru_backward(g, *ctx.saved_tensors)
        rz, n, b, h = ctx.saved_tensors
        width = h.shape[-1]
        r, z = rz.chunk(2, dim=-1)
        gz = g * z  # the gradient of h
        into_n = (g - gz) * (1 - n * n)  # before the tanh
        to_inputs = torch.empty((*g.shape[:-1], 3 * width), dtype=g.dtype, device=g.device)
        torch.mul(into_n, b, out=to_inputs[..., :width])
        torch.mul(g, h - n, out=to_inputs[..., width : 2 * width])
        to_inputs[..., : 2 * width].mul_(rz).mul_(1 - rz)
        to_inputs[..., 2 * width :] = into_n
        to_recurrent = to_inputs.clone()
        to_recurrent[..., 2 * width :].mul_(r)
        return to_inputs, to_recurrent, gz


def _gru_forward(inputs: Tensor, recurrent: Tensor, h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """h', and what the backward pass needs."""
    if has_triton(h):
        from .rnn_gates_triton import gru_forward

        return gru_forward(inputs, recurrent, h)
    return _gru_formula(inputs, recurrent, h)


def _gru_formula(inputs: Tensor, recurrent: Tensor, h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    width = h.shape[-1]
    inputs, recurrent = inputs.to(h.dtype), recurrent.to(h.dtype)
    rz = torch.sigmoid(inputs[..., : 2 * width] + recurrent[..., : 2 * width])
    r, z = rz.chunk(2, dim=-1)
    b = recurrent[..., 2 * width :]
    n = tanh_(torch.addcmul(inputs[..., 2 * width :], r, b))
    return torch.lerp(n, h, z), (rz, n, b, h)  # n + z (h − n)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if has_triton(c):
            from .rnn_gates_triton import lstm_forward

            h, new, saved = lstm_forward(total, c)
            ctx.save_for_backward(*saved)
            return h, new
        i, f, g, o = total.to(c.dtype).chunk(4, dim=-1)
        i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
        g = torch.tanh(g)
        new = torch.addcmul(f * c, i, g)
        squashed = torch.tanh(new)
        ctx.save_for_backward(i, f, g, o, c, squashed)
        return o * squashed, new

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gh: Tensor, gc: Tensor) -> tuple[Tensor, Tensor]:
        if has_triton(gh):
            from .rnn_gates_triton import lstm_backward

            return lstm_backward(gh, gc, *ctx.saved_tensors)
        i, f, g, o, c, squashed = ctx.saved_tensors
        gc = torch.addcmul(gc, gh * o, 1 - squashed * squashed)
        into = torch.cat(
            [gc * g * i * (1 - i), gc * c * f * (1 - f), gc * i * (1 - g * g), gh * squashed * o * (1 - o)], dim=-1
        )
        return into, gc * f


def gru(
    inputs: Float[Tensor, "*batch 3*width"],
    recurrent: Float[Tensor, "*batch 3*width"],
    h: Float[Tensor, "*batch width"],
) -> Float[Tensor, "*batch width"]:
    """r, z = σ(inputs + recurrent);  n = tanh(inputs_n + r ⊙ recurrent_n);  h' = (1 − z) ⊙ n + z ⊙ h  (Cho 2014).

    `inputs` is W x + b and `recurrent` is U h + b'. Both hold r, z and n, in this order.
    """
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
        # In a search an autograd.Function takes as long as two operations. It refuses torch.vmap and forward mode; the
        # kernel would not notice them.
        forward = _gru_formula if transformed() or forward_mode() else _gru_forward
        return forward(inputs, recurrent, h)[0]
    new: Tensor = _GRU.apply(inputs, recurrent, h)
    return new


def lstm(
    total: Float[Tensor, "*batch 4*width"], c: Float[Tensor, "*batch width"]
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """i, f, o = σ(·);  g = tanh(·);  c' = f ⊙ c + i ⊙ g;  h' = o ⊙ tanh(c')  (Hochreiter & Schmidhuber 1997).

    `total` = W x + U h + b holds i, f, g and o, in this order. Returns (h', c').
    """
    h, new = _LSTM.apply(total, c)
    return h, new
