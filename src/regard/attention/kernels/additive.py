"""Additive attention: the op `regard::additive`, softmax(scale · w·tanh(a_i + b_j)) · v, and its kernel for the CPU.

Additive attention on CPU: e_ij = w · tanh(a_i + b_j), softmax over j, times v, in blocks that stay in cache.

    tanh(x + y) = 1 − 2 / (e^{2x} e^{2y} + 1)

so the exponentials are taken once per row (T·D of them) and what remains per triple (i, j, d) is a product, a sum and
a division, where a tanh costs many times that. The [T_q, T_k, D] tensor exists one tile at a time, in the cache.

Rows are processed whole (all their keys), which needs O(T_k) memory per row and no rescaling; the backward
recomputes them.

The op has one schema and one implementation per device, that of the GPU imported when first needed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor  # at run time too: torch.library reads the annotations

from . import TRITON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float, Int
    from torch.autograd.function import FunctionCtx

    from ..energies import TanhForm
    from ..energy_matrix import EnergyMatrix
    from ..masks import Interval
    from ..normalizers import Normalizer

TILE = 1 << 20
"""Numbers in one [n, rows, cols, d] tile: 4 MiB of float32. Smaller ones pay for calls, larger ones leave the cache."""

ROWS = 1 << 18
"""Numbers in one [n, rows, T_k] block of energies."""


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


class _Block(NamedTuple):
    n: slice
    rows: slice
    cols: slice
    hidden: Bool[Tensor, "n rows cols"] | None
    """Keys of the block that its queries do not see; None where they see them all."""
    seed: int


def _blocks(a: Tensor, b: Tensor, start: Tensor | None, stop: Tensor | None, seed: Tensor | None) -> list[_Block]:
    """Row blocks, each with only the span of keys that some row of it sees. Forward and backward cut them alike."""
    count, queries, keys = a.shape[0], a.shape[1], b.shape[1]
    tall = max(1, min(queries, ROWS // keys))
    deep = max(1, min(count, ROWS // (keys * tall)))
    blocks, drawn = [], 0 if seed is None else int(seed)
    for m in range(0, count, deep):
        n = slice(m, min(m + deep, count))
        for i in range(0, queries, tall):
            rows = slice(i, min(i + tall, queries))
            drawn += 1
            if start is None or stop is None:
                blocks.append(_Block(n, rows, slice(0, keys), None, drawn))
                continue
            low, high = _rows(start, n, rows), _rows(stop, n, rows)
            cols = slice(int(low.min()), max(int(high.max()), int(low.min())))
            j = torch.arange(cols.start, cols.stop)
            if cols.start < cols.stop:
                blocks.append(_Block(n, rows, cols, (j < low) | (j >= high), drawn))
    return blocks


def _rows(bound: Int[Tensor, "n q"], n: slice, rows: slice) -> Int[Tensor, "n rows 1"]:
    bound = bound[n] if bound.shape[0] > 1 else bound
    return (bound[:, rows] if bound.shape[1] > 1 else bound)[..., None]


def _kept(block: _Block, like: Tensor, dropout: float) -> Tensor:
    """The dropout factors of a block, the same whenever asked: 0 or 1/(1 − dropout)."""
    generator = torch.Generator().manual_seed(block.seed)
    return torch.empty_like(like).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _softmax_(e: Float[Tensor, "n rows cols"]) -> tuple[Float[Tensor, "n rows cols"], Float[Tensor, "n rows"]]:
    """The softmax in place of the energies, and the log-sum-exp; 0 and +∞ in rows that see no key.

    Not e^{e − lse}: where energies are large the log-sum-exp is rounded so much that weights do not sum to one.
    """
    top = e.amax(-1, keepdim=True)
    top.masked_fill_(top == -torch.inf, 0)
    total = e.sub_(top).exp_().sum(-1, keepdim=True)
    empty = total == 0
    lse = total.log().add_(top).masked_fill_(empty, torch.inf)
    return e.div_(total.masked_fill_(empty, 1)), lse.squeeze(-1)


def forward(
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    seed: Int[Tensor, ""] | None,
    scale: float,
    dropout: float,
) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
    """Output and log-sum-exp; +∞ marks a row that sees no key."""
    out = a.new_zeros(a.shape[0], a.shape[1], v.shape[2])
    lse = a.new_full(a.shape[:2], torch.inf)

    for block in _blocks(a, b, start, stop, seed):
        n, rows, cols, hidden, _ = block
        e = energies(a[n, rows], b[n, cols], w).mul_(scale)
        if hidden is not None:
            e.masked_fill_(hidden, -torch.inf)
        p, lse[n, rows] = _softmax_(e)
        if dropout:
            p.mul_(_kept(block, p, dropout))
        out[n, rows] = p @ v[n, cols]
    return out, lse


def backward(
    grad: Float[Tensor, "n q d_v"],
    grad_lse: Float[Tensor, "n q"],
    a: Float[Tensor, "n q d"],
    b: Float[Tensor, "n k d"],
    w: Float[Tensor, " d"],
    v: Float[Tensor, "n k d_v"],
    start: Int[Tensor, "_ _"] | None,
    stop: Int[Tensor, "_ _"] | None,
    seed: Int[Tensor, ""] | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w and v.

    dp_ij = grad_i·v_j      ds_ij = p_ij (dp_ij − Σ_j p_ij dp_ij)      with t = tanh(a_i + b_j) = 1 − 2r:
    da_i = Σ_j ds_ij w (1 − t²)      db_j = Σ_i ds_ij w (1 − t²)      dw = Σ_ij ds_ij t
    """
    da, db, dw, dv = (torch.zeros_like(x) for x in (a, b, w, v))
    first, second = _buffers(2, a.shape[2], a)
    for block in _blocks(a, b, start, stop, seed):
        n, rows, cols, hidden, _ = block
        left, right = _sides(a[n, rows], b[n, cols])
        e = _energies(left, right, w).mul_(scale)
        if hidden is not None:
            e.masked_fill_(hidden, -torch.inf)
        p, _ = _softmax_(e)
        dp = grad[n, rows] @ v[n, cols].mT
        kept = _kept(block, p, dropout) if dropout else None
        if kept is not None:
            dp.mul_(kept)
        dv[n, cols] += (p if kept is None else p * kept).mT @ grad[n, rows]
        # The log-sum-exp's own gradient enters with p_ij, too.
        delta = torch.linalg.vecdot(p, dp).sub_(grad_lse[n, rows])
        ds = dp.sub_(delta[..., None]).mul_(p).mul_(scale)  # [n, rows, cols]
        dw += ds.sum()
        da_block, db_block = da[n, rows], db[n, cols]
        for m, i, j in _tiles(ds.shape[0], ds.shape[1], ds.shape[2], a.shape[2]):
            r = _tile(left, right, m, i, j, first)  # [n, i, j, d]
            x = torch.mul(r, ds[m, i, j, None], out=_shaped(second, *r.shape))
            dw.sub_(x.sum(2).sum((0, 1)), alpha=2)
            x.addcmul_(x, r, value=-1)  # ds r (1 − r), a quarter of ds (1 − t²)
            da_block[m, i] += x.sum(2)
            db_block[m, j] += x.sum(1)
    quarter = 4 * w
    return da.mul_(quarter), db.mul_(quarter), dw, dv


@torch.library.custom_op("regard::additive", mutates_args=(), device_types="cpu")
def additive(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """a [n, q, d], b [n, k, d], w [d], v [n, k, d_v] → output [n, q, d_v] and log-sum-exp [n, q].

    Query i sees keys start_i ≤ j < stop_i ([n or 1, q or 1], both or neither). Dropout repeats with its seed.
    """
    out, lse = forward(_wide(a), _wide(b), _wide(w), _wide(v), start, stop, seed, scale, dropout)
    return out.to(v.dtype), lse


@torch.library.custom_op("regard::additive_backward", mutates_args=(), device_types="cpu")
def additive_backward(
    grad: Tensor,
    grad_lse: Tensor,
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    seed: Tensor | None,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = _wide(grad), _wide(grad_lse), _wide(a), _wide(b), _wide(w), _wide(v)
    gradients = backward(*wide, start, stop, seed, scale, dropout)
    return tuple(g.to(x.dtype) for g, x in zip(gradients, (a, b, w, v), strict=True))  # type: ignore[return-value]


def _forward_gpu(*inputs: Any) -> tuple[Tensor, Tensor]:
    from . import additive_triton

    return additive_triton.forward(*inputs)


def _backward_gpu(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from . import additive_triton

    return additive_triton.backward(*inputs)


additive.register_kernel("cuda", _forward_gpu)
additive_backward.register_kernel("cuda", _backward_gpu)


def _wide(x: Tensor) -> Tensor:
    """float32 at least, contiguous (tiles are cut from the front)."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()


@additive.register_fake
def _(a: Tensor, b: Tensor, w: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    state = torch.promote_types(a.dtype, torch.float32)
    return v.new_empty(a.shape[0], a.shape[1], v.shape[2]), a.new_empty(a.shape[:2], dtype=state)


@additive_backward.register_fake
def _(grad: Tensor, grad_lse: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, w, v = (x.new_empty(x.shape) for x in inputs[:4])
    return a, b, w, v


def _setup(ctx: FunctionCtx, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, scale, dropout = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.scale, ctx.dropout = scale, dropout  # type: ignore[attr-defined]


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    a, b, w, v, start, stop, seed, out, lse = ctx.saved_tensors
    gradients = additive_backward(grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, ctx.scale, ctx.dropout)
    return (*gradients, *[None] * 5)


additive.register_autograd(_gradients, setup_context=_setup)


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> tuple[str | None, Interval | None]:
    """Why the op does not apply (None if it does, "" if nobody expects it to), and the intervals of the mask."""
    device = energies.a.device.type
    if energies.form.kernel != "tanh" or not (energies.a.numel() and energies.b.numel() and v.numel()):
        return "", None
    if device not in ("cpu", "cuda"):
        return f"runs on CPU and CUDA, not {device}", None
    if device == "cuda" and not TRITON:
        return "needs Triton on CUDA", None
    if device == "cuda" and energies.precision == torch.float64:
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
