"""Additive energies, e_ij = w · tanh(a_i + b_j), without their [T_q, T_k, D] tensor: on a CPU a tile at a time.

    tanh(x + y) = 1 − 2 / (e^{2x} e^{2y} + 1)

so the exponentials are taken once per row (T·D of them) and what remains per triple (i, j, d) is a product, a sum and
a division, where a tanh costs many times that. A tile stays in the cache. Softmax, mask, dropout and values are those
of the formula in blocks (`backends/fused.py`). On a GPU `additive_triton` computes all of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.autograd.function import once_differentiable

from . import TRITON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Float
    from torch import Tensor

    from ..energies import TanhForm
    from ..energy_matrix import EnergyMatrix
    from ..masks import Interval
    from ..normalizers import Normalizer

TILE = 1 << 20
"""Numbers in one [n, rows, cols, d] tile: 4 MiB of float32. Smaller ones pay for calls, larger ones leave the cache."""


class Tanh(NamedTuple):
    """One side of the identity: e^{2x} for rows x, or x itself where the exponential could overflow."""

    rows: Float[Tensor, "n t d"]
    exponential: bool


def _sides(a: Tensor, b: Tensor) -> tuple[Tanh, Tanh]:
    """e^{2a} and e^{2b}, unless some pair (a_i, b_j) could be large on both sides at once.

    Within ±limit no exponential overflows, and a product that does gives 1/∞ = 0: the right answer. If one side
    exceeds it while the other stays within limit − saturation, then |a + b| is past where tanh rounds to ±1, and
    clamping the large side changes nothing. If both are large, a + b may be anything: then tanh itself.
    """
    limit = math.log(torch.finfo(a.dtype).max) / 2 - 1  # 43.4 in float32
    saturation = 10.0 if a.dtype == torch.float32 else 20.0
    # What is not finite decides nothing: NaN stays NaN either way, and ±∞ is clamped or saturates. Otherwise one bad
    # row could send its neighbours down another path.
    small, large = sorted(float(x.where(x.isfinite(), 0).abs().amax()) for x in (a, b))
    if large <= limit or small <= limit - saturation:
        return Tanh((2 * a.clamp(-limit, limit)).exp_(), True), Tanh((2 * b.clamp(-limit, limit)).exp_(), True)
    return Tanh(a, False), Tanh(b, False)


def _tile(a: Tanh, b: Tanh, n: slice, i: slice, j: slice, buffer: Float[Tensor, " size"]) -> Float[Tensor, "n i j d"]:
    """r = 1 / (e^{2(a_i + b_j)} + 1), so that tanh(a_i + b_j) = 1 − 2r and its derivative is 4 r (1 − r)."""
    x, y = a.rows[n, i, None], b.rows[n, None, j]  # [n, i, 1, d], [n, 1, j, d]
    out = _shaped(buffer, x.shape[0], x.shape[1], y.shape[2], x.shape[3])
    if a.exponential:
        return torch.mul(x, y, out=out).add_(1).reciprocal_()
    return torch.add(x, y, out=out).tanh_().mul_(-0.5).add_(0.5)


def _shaped(buffer: Tensor, *shape: int) -> Tensor:
    return buffer[: math.prod(shape)].view(shape)


def _buffers(count: int, width: int, like: Tensor) -> Float[Tensor, "count size"]:
    """Room for `count` tiles, used again for every tile: fresh memory costs more in page faults than in arithmetic."""
    return like.new_empty(count, max(TILE, width))


def _tiles(n: int, rows: int, cols: int, width: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut [n, rows, cols, width] into tiles of about TILE numbers, whole rows where they fit."""
    wide = max(1, min(cols, TILE // width))
    tall = max(1, min(rows, TILE // (width * wide)))
    deep = max(1, min(n, TILE // (width * wide * tall)))
    for m in range(0, n, deep):
        for i in range(0, rows, tall):
            for j in range(0, cols, wide):
                yield slice(m, m + deep), slice(i, i + tall), slice(j, j + wide)


def _energies(a: Tanh, b: Tanh, w: Float[Tensor, " d"]) -> Float[Tensor, "n i j"]:
    (n, rows, width), cols = a.rows.shape, b.rows.shape[1]
    e, buffer = a.rows.new_empty(n, rows, cols), _buffers(1, width, w)[0]
    for m, i, j in _tiles(n, rows, cols, width):
        # Multiply and sum: on CPU faster than a matrix-vector product of this shape.
        torch.sum(_tile(a, b, m, i, j, buffer).mul_(w), -1, out=e[m, i, j])
    return e.mul_(-2).add_(w.sum())


def energies(a: Float[Tensor, "n i d"], b: Float[Tensor, "n j d"], w: Float[Tensor, " d"]) -> Float[Tensor, "n i j"]:
    """w · tanh(a_i + b_j) for all i, j."""
    return _energies(*_sides(a, b), w)


class TanhEnergies(torch.autograd.Function):
    """`energies` with a gradient, whose backward computes each tile again. With t = tanh(a_i + b_j) = 1 − 2r:

    da_i = Σ_j de_ij w (1 − t²)      db_j = Σ_i de_ij w (1 − t²)      dw = Σ_ij de_ij t
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, w)
        return energies(a, b, w)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, de: Float[Tensor, "n i j"]) -> tuple[Tensor, Tensor, Tensor]:
        a, b, w = ctx.saved_tensors
        left, right = _sides(a, b)
        da, db, dw = torch.zeros_like(a), torch.zeros_like(b), de.sum().expand(w.shape).clone()
        first, second = _buffers(2, a.shape[2], a)
        for m, i, j in _tiles(a.shape[0], a.shape[1], b.shape[1], a.shape[2]):
            r = _tile(left, right, m, i, j, first)  # [n, i, j, d]
            x = torch.mul(r, de[m, i, j, None], out=_shaped(second, *r.shape))
            dw.sub_(x.sum(2).sum((0, 1)), alpha=2)
            x.addcmul_(x, r, value=-1)  # de r (1 − r), a quarter of de (1 − t²)
            da[m, i] += x.sum(2)
            db[m, j] += x.sum(1)
        quarter = 4 * w
        return da.mul_(quarter), db.mul_(quarter), dw


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> tuple[str | None, Interval | None]:
    """Why the GPU's op does not apply (None if it does, "" if nobody expects it to), and the intervals of the mask."""
    if energies.form.kernel != "tanh" or not (energies.a.numel() and energies.b.numel() and v.numel()):
        return "", None
    if not energies.a.is_cuda:
        return "", None
    if not TRITON:
        return "needs Triton on CUDA", None
    if energies.precision == torch.float64:
        return "computes in float32 on CUDA", None
    if normalize.kernel != "softmax":
        return f"has softmax only, not {type(normalize).__name__}", None
    if normalize.sink is not None:
        return "has no sink", None
    if energies.modifiers:
        return "has no score modifiers", None
    bounds = None if energies.mask is None else energies.intervals()
    if energies.mask is not None and bounds is None:
        return "takes masks that are one interval of keys per query", None
    return None, bounds


def attention(
    energies: EnergyMatrix, temperature: float, v: Tensor, bounds: Interval | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Output and row state where `refusal` has nothing against it."""
    from .additive_triton import additive

    flat, form = energies.flat(), cast("TanhForm", energies.form)
    values = energies.flatten(energies.per_query_head(v))
    # Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere.
    seed = torch.randint(2**62, (), device=v.device) if dropout else None
    out, state = additive(
        flat.a, flat.b, form.weight, values, *(bounds or (None, None)), seed, 1 / temperature, dropout
    )
    if len(energies.batch) != 1:
        out, state = out.reshape(*energies.batch, *out.shape[1:]), state.reshape(*energies.batch, energies.queries)
    return out, state
