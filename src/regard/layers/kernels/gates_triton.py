"""The gates of the GRU and the LSTM as Triton kernels, in float32 inside: one launch forward, one backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.kernels.additive_triton import tanh

_BLOCK = 1024


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _element(width, n_all, BLOCK: tl.constexpr):
    """Index, mask, row and column of each element of this program's block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < n_all, at // width, at % width


@triton.jit
def _load(x, at, ok):
    return tl.load(x + at, ok, 0.0).to(tl.float32)


@triton.jit
def _load_gates(x, at, width, ok):
    return _load(x, at, ok), _load(x, at + width, ok), _load(x, at + 2 * width, ok)


@triton.jit
def _store_gates(x, at, width, ok, first, second, third):
    tl.store(x + at, first, ok)
    tl.store(x + at + width, second, ok)
    tl.store(x + at + 2 * width, third, ok)


@triton.jit
def _gru_forward(inputs, recurrent, h, new, saved, width, n_all, BLOCK: tl.constexpr):
    at, ok, row, col = _element(width, n_all, BLOCK)
    a_r, a_z, a_n = _load_gates(inputs, row * 3 * width + col, width, ok)
    b_r, b_z, b_n = _load_gates(recurrent, row * 3 * width + col, width, ok)
    before = _load(h, at, ok)
    r, z = _sigmoid(a_r + b_r), _sigmoid(a_z + b_z)
    n = tanh(a_n + r * b_n)
    tl.store(new + at, n + z * (before - n), ok)
    keep = row * 4 * width + col
    _store_gates(saved, keep, width, ok, r, z, n)
    tl.store(saved + keep + 3 * width, b_n, ok)


@triton.jit
def _gru_backward(g, saved, h, to_inputs, to_recurrent, to_h, width, n_all, BLOCK: tl.constexpr):
    at, ok, row, col = _element(width, n_all, BLOCK)
    keep = row * 4 * width + col
    r, z, n = _load_gates(saved, keep, width, ok)
    b_n = _load(saved, keep + 3 * width, ok)
    before, grad = _load(h, at, ok), _load(g, at, ok)
    into_n = grad * (1 - z) * (1 - n * n)
    into_r = into_n * b_n * r * (1 - r)
    into_z = grad * (before - n) * z * (1 - z)
    gates = row * 3 * width + col
    _store_gates(to_inputs, gates, width, ok, into_r, into_z, into_n)
    _store_gates(to_recurrent, gates, width, ok, into_r, into_z, into_n * r)
    tl.store(to_h + at, grad * z, ok)


@triton.jit
def _lstm_forward(total, c, h, new, saved, width, n_all, BLOCK: tl.constexpr):
    at, ok, row, col = _element(width, n_all, BLOCK)
    gates = row * 4 * width + col
    i, f, g = _load_gates(total, gates, width, ok)
    i, f, g, o = _sigmoid(i), _sigmoid(f), tanh(g), _sigmoid(_load(total, gates + 3 * width, ok))
    after = f * _load(c, at, ok) + i * g
    tl.store(new + at, after, ok)
    tl.store(h + at, o * tanh(after), ok)
    _store_gates(saved, gates, width, ok, i, f, g)
    tl.store(saved + gates + 3 * width, o, ok)


@triton.jit
def _lstm_backward(gh, gc, saved, c, new, into, to_c, width, n_all, BLOCK: tl.constexpr):
    at, ok, row, col = _element(width, n_all, BLOCK)
    gates = row * 4 * width + col
    i, f, g = _load_gates(saved, gates, width, ok)
    o = _load(saved, gates + 3 * width, ok)
    squashed, grad_h = tanh(_load(new, at, ok)), _load(gh, at, ok)
    grad_c = _load(gc, at, ok) + grad_h * o * (1 - squashed * squashed)
    into_f = grad_c * _load(c, at, ok) * f * (1 - f)
    _store_gates(into, gates, width, ok, grad_c * g * i * (1 - i), into_f, grad_c * i * (1 - g * g))
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
