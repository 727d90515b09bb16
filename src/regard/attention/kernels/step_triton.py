"""e_j = w · tanh(q + k_j) for one query per sentence, in float32 whatever the inputs are.

One launch forward, one backward, which computes the tanh again.
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
    g, q, keys, w, to_q, sum_keys, to_w, places, room, width, WIDTH: tl.constexpr, PLACES: tl.constexpr
):
    # One program per sentence: no other adds to its sums, so the order of additions is fixed.
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = tl.load(q + row * width + d, d < width, 0.0).to(tl.float32)
    weight = tl.load(w + d, d < width, 0.0).to(tl.float32)
    into_q = tl.zeros([WIDTH], dtype=tl.float32)
    into_w = tl.zeros([WIDTH], dtype=tl.float32)
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
    tl.store(to_w + row * width + d, into_w, d < width)


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


def add_gradients(g: Tensor, q: Tensor, keys: Tensor, weight: Tensor, sum_keys: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of q and w. Adds to `sum_keys`, which lacks the factor w.

    `sum_keys` has the keys' strides: both whole, or both the first places of a larger buffer.
    """
    g, q, weight = g.contiguous(), q.contiguous(), weight.contiguous()
    keys, room = _room(keys)
    if sum_keys.stride() != keys.stride():
        raise ValueError(f"the sums have strides {sum_keys.stride()} and the keys {keys.stride()}; they must be equal")
    batch, places, width = keys.shape
    to_q = torch.empty_like(q)
    to_w = torch.empty(batch, width, dtype=torch.float32, device=q.device)
    block = min(128, triton.next_power_of_2(width))
    _energies_backward[(batch, triton.cdiv(width, block))](
        g, q, keys, weight, to_q, sum_keys, to_w, places, room, width, WIDTH=block, PLACES=16
    )
    return to_q, to_w.sum(0).to(weight.dtype)


def _room(keys: Tensor) -> tuple[Tensor, int]:
    """Keys without gaps inside a sentence, and the distance from one sentence to the next, in keys."""
    width = keys.shape[-1]
    if keys.stride(2) != 1 or keys.stride(1) != width or keys.stride(0) % width:
        keys = keys.contiguous()
    return keys, keys.stride(0) // width
