"""The gates as Triton kernels: one launch forward, one backward, in float32 whatever the inputs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from ...attention.kernels.additive.additive_step_triton import tanh

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1024


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _gru_forward(inputs, recurrent, h, new, saved, width, n_all, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n_all
    row, col = at // width, at % width
    gates = row * 3 * width + col
    a_r = tl.load(inputs + gates, ok, 0.0).to(tl.float32)
    a_z = tl.load(inputs + gates + width, ok, 0.0).to(tl.float32)
    a_n = tl.load(inputs + gates + 2 * width, ok, 0.0).to(tl.float32)
    b_r = tl.load(recurrent + gates, ok, 0.0).to(tl.float32)
    b_z = tl.load(recurrent + gates + width, ok, 0.0).to(tl.float32)
    b_n = tl.load(recurrent + gates + 2 * width, ok, 0.0).to(tl.float32)
    before = tl.load(h + at, ok, 0.0).to(tl.float32)
    r, z = _sigmoid(a_r + b_r), _sigmoid(a_z + b_z)
    n = tanh(a_n + r * b_n)
    tl.store(new + at, n + z * (before - n), ok)
    keep = row * 4 * width + col
    tl.store(saved + keep, r, ok)
    tl.store(saved + keep + width, z, ok)
    tl.store(saved + keep + 2 * width, n, ok)
    tl.store(saved + keep + 3 * width, b_n, ok)


@triton.jit
def _gru_backward(g, saved, h, to_inputs, to_recurrent, to_h, width, n_all, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n_all
    row, col = at // width, at % width
    keep = row * 4 * width + col
    r = tl.load(saved + keep, ok, 0.0).to(tl.float32)
    z = tl.load(saved + keep + width, ok, 0.0).to(tl.float32)
    n = tl.load(saved + keep + 2 * width, ok, 0.0).to(tl.float32)
    b_n = tl.load(saved + keep + 3 * width, ok, 0.0).to(tl.float32)
    before = tl.load(h + at, ok, 0.0).to(tl.float32)
    grad = tl.load(g + at, ok, 0.0).to(tl.float32)
    into_n = grad * (1 - z) * (1 - n * n)
    into_r = into_n * b_n * r * (1 - r)
    into_z = grad * (before - n) * z * (1 - z)
    gates = row * 3 * width + col
    tl.store(to_inputs + gates, into_r, ok)
    tl.store(to_inputs + gates + width, into_z, ok)
    tl.store(to_inputs + gates + 2 * width, into_n, ok)
    tl.store(to_recurrent + gates, into_r, ok)
    tl.store(to_recurrent + gates + width, into_z, ok)
    tl.store(to_recurrent + gates + 2 * width, into_n * r, ok)
    tl.store(to_h + at, grad * z, ok)


@triton.jit
def _lstm_forward(total, c, h, new, saved, width, n_all, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n_all
    row, col = at // width, at % width
    gates = row * 4 * width + col
    i = _sigmoid(tl.load(total + gates, ok, 0.0).to(tl.float32))
    f = _sigmoid(tl.load(total + gates + width, ok, 0.0).to(tl.float32))
    g = tanh(tl.load(total + gates + 2 * width, ok, 0.0).to(tl.float32))
    o = _sigmoid(tl.load(total + gates + 3 * width, ok, 0.0).to(tl.float32))
    after = f * tl.load(c + at, ok, 0.0).to(tl.float32) + i * g
    tl.store(new + at, after, ok)
    tl.store(h + at, o * tanh(after), ok)
    tl.store(saved + gates, i, ok)
    tl.store(saved + gates + width, f, ok)
    tl.store(saved + gates + 2 * width, g, ok)
    tl.store(saved + gates + 3 * width, o, ok)


@triton.jit
def _lstm_backward(gh, gc, saved, c, new, into, to_c, width, n_all, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n_all
    row, col = at // width, at % width
    gates = row * 4 * width + col
    i = tl.load(saved + gates, ok, 0.0).to(tl.float32)
    f = tl.load(saved + gates + width, ok, 0.0).to(tl.float32)
    g = tl.load(saved + gates + 2 * width, ok, 0.0).to(tl.float32)
    o = tl.load(saved + gates + 3 * width, ok, 0.0).to(tl.float32)
    before = tl.load(c + at, ok, 0.0).to(tl.float32)
    squashed = tanh(tl.load(new + at, ok, 0.0).to(tl.float32))
    grad_h = tl.load(gh + at, ok, 0.0).to(tl.float32)
    grad_c = tl.load(gc + at, ok, 0.0).to(tl.float32) + grad_h * o * (1 - squashed * squashed)
    tl.store(into + gates, grad_c * g * i * (1 - i), ok)
    tl.store(into + gates + width, grad_c * before * f * (1 - f), ok)
    tl.store(into + gates + 2 * width, grad_c * i * (1 - g * g), ok)
    tl.store(into + gates + 3 * width, grad_h * squashed * o * (1 - o), ok)
    tl.store(to_c + at, grad_c * f, ok)


def _grid(n: int) -> tuple[int]:
    return (triton.cdiv(n, _BLOCK),)


def gru_forward(inputs: Tensor, recurrent: Tensor, h: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    inputs, recurrent, h = inputs.contiguous(), recurrent.contiguous(), h.contiguous()
    width, n = h.shape[-1], h.numel()
    new = torch.empty_like(h)
    saved = torch.empty((*h.shape[:-1], 4 * width), dtype=inputs.dtype, device=h.device)
    _gru_forward[_grid(n)](inputs, recurrent, h, new, saved, width, n, BLOCK=_BLOCK)
    return new, (saved, h)


def gru_backward(g: Tensor, saved: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    g = g.contiguous()
    width, n = h.shape[-1], h.numel()
    to_inputs = torch.empty((*h.shape[:-1], 3 * width), dtype=saved.dtype, device=h.device)
    to_recurrent, to_h = torch.empty_like(to_inputs), torch.empty_like(h)
    _gru_backward[_grid(n)](g, saved, h, to_inputs, to_recurrent, to_h, width, n, BLOCK=_BLOCK)
    return to_inputs, to_recurrent, to_h


def lstm_forward(total: Tensor, c: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    total, c = total.contiguous(), c.contiguous()
    width, n = c.shape[-1], c.numel()
    h, new, saved = torch.empty_like(c), torch.empty_like(c), torch.empty_like(total)
    _lstm_forward[_grid(n)](total, c, h, new, saved, width, n, BLOCK=_BLOCK)
    return h, new, (saved, c, new)


def lstm_backward(gh: Tensor, gc: Tensor, saved: Tensor, c: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    gh, gc = gh.contiguous(), gc.contiguous()
    width, n = c.shape[-1], c.numel()
    into, to_c = torch.empty_like(saved), torch.empty_like(c)
    _lstm_backward[_grid(n)](gh, gc, saved, c, new, into, to_c, width, n, BLOCK=_BLOCK)
    return into, to_c
