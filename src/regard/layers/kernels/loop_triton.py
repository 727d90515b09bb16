"""A step of a recurrent loop as Triton kernels, in float32 whatever the inputs are: one launch forward, one backward.

- e_j = w · tanh(q + k_j) for one query per sentence; the backward pass computes the tanh again;
- the gates of the GRU and the LSTM.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def tanh(x):
    # 1 − 2/(e^{2x} + 1): exact at both ends, e^{2x} = ∞ gives 1 and 0 gives −1.
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def _energies(q, keys, w, e, places, room, width, WIDTH: tl.constexpr, PLACES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    d = tl.arange(0, WIDTH)
    here = tl.load(q + row * width + d, d < width, 0.0).to(tl.float32)
    weight = tl.load(w + d, d < width, 0.0).to(tl.float32)
    at = (row * room + j)[:, None] * width + d
    key = tl.load(keys + at, (j < places)[:, None] & (d < width), 0.0).to(tl.float32)
    tl.store(e + row * places + j, tl.sum(tanh(here + key) * weight, axis=1), j < places)


@triton.jit
def _energies_backward(
    g, q, keys, w, to_q, sum_keys, sum_w, places, room, width, WIDTH: tl.constexpr, PLACES: tl.constexpr
):
    # One program per sentence: no other adds to its sums, so the order of additions is fixed.
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = tl.load(q + row * width + d, d < width, 0.0).to(tl.float32)
    weight = tl.load(w + d, d < width, 0.0).to(tl.float32)
    into_q = tl.zeros([WIDTH], dtype=tl.float32)
    into_w = tl.load(sum_w + row * width + d, d < width, 0.0)
    for first in range(0, places, PLACES):
        j = first + tl.arange(0, PLACES)
        inside = (j < places)[:, None] & (d < width)
        at = (row * room + j)[:, None] * width + d
        grad = tl.load(g + row * places + j, j < places, 0.0).to(tl.float32)[:, None]
        hidden = tanh(here + tl.load(keys + at, inside, 0.0).to(tl.float32))
        into = grad * (1 - hidden * hidden)
        into_q += tl.sum(into, axis=0)
        into_w += tl.sum(grad * hidden, axis=0)
        tl.store(sum_keys + at, tl.load(sum_keys + at, inside, 0.0) + into, inside)
    tl.store(to_q + row * width + d, into_q * weight, d < width)
    tl.store(sum_w + row * width + d, into_w, d < width)


def energies(q: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """q [batch, d], keys [batch, places, d] → [batch, places], float32."""
    q, weight = q.contiguous(), weight.contiguous()
    keys, room = _room(keys)
    batch, places, width = keys.shape
    e = torch.empty(batch, places, dtype=torch.float32, device=q.device)
    block = triton.next_power_of_2(width)
    rows = max(1, 4096 // block)
    _energies[(batch, triton.cdiv(places, rows))](q, keys, weight, e, places, room, width, WIDTH=block, PLACES=rows)
    return e


def add_gradients(g: Tensor, q: Tensor, keys: Tensor, weight: Tensor, sum_keys: Tensor, sum_w: Tensor) -> Tensor:
    """Adds to `sum_keys` (without its factor w) and `sum_w` (one row per sentence); returns the gradient of q.

    `sum_keys` has the keys' strides: both whole, or both the first places of a larger buffer.
    """
    g, q, weight = g.contiguous(), q.contiguous(), weight.contiguous()
    keys, room = _room(keys)
    if sum_keys.stride() != keys.stride():
        raise ValueError(f"the sums have strides {sum_keys.stride()} and the keys {keys.stride()}; they must be equal")
    batch, places, width = keys.shape
    to_q = torch.empty_like(q)
    block = min(128, triton.next_power_of_2(width))
    _energies_backward[(batch, triton.cdiv(width, block))](
        g, q, keys, weight, to_q, sum_keys, sum_w, places, room, width, WIDTH=block, PLACES=16
    )
    return to_q


def _room(keys: Tensor) -> tuple[Tensor, int]:
    """Keys without gaps inside a sentence, and the distance from one sentence to the next, in keys."""
    width = keys.shape[-1]
    if keys.stride(2) != 1 or keys.stride(1) != width or keys.stride(0) % width:
        keys = keys.contiguous()
    return keys, keys.stride(0) // width


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
