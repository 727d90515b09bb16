"""Packed sequences: the vectors of all sequences in a row, with cumulative lengths, as FlashAttention takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack, overload

import torch

from .attend import attend_sequences
from .jagged_sequences import JaggedBatch, Sequences
from .torch_transforms import readable

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .attend import Options
    from .weights import Weights


@overload
def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    weights: Literal[False] = ...,
    **options: Unpack[Options],
) -> Float[Tensor, "total_q *heads d_v"]: ...


@overload
def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    weights: Literal[True],
    **options: Unpack[Options],
) -> tuple[Float[Tensor, "total_q *heads d_v"], Weights]: ...


def attend_packed(
    q: Float[Tensor, "total_q *heads d_q"],
    k: Float[Tensor, "total_k *key_heads d_k"],
    v: Float[Tensor, "total_k *key_heads d_v"],
    cu_seqlens_q: Int[Tensor, " b_and_one"],
    cu_seqlens_k: Int[Tensor, " b_and_one"] | None = None,
    *,
    weights: bool = False,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Weights]:
    """`attend` for each sequence of a packed batch: q [total, D] or [total, heads, D], as FlashAttention packs them.

    Sequence b has the rows cu_seqlens_q[b] up to cu_seqlens_q[b + 1] of q, and by cu_seqlens_k those of k and v (the
    same without it). The options are those of `attend`. Masks and positions count from the start of each sequence:
    `mask=causal("bottom-right")` is FlashAttention's `causal=True`.

    The weights are [B, heads, longest T_q, longest T_k], zero after the end of a sequence; `w[b]` are those of one.

    The cumulative lengths are read, from a GPU too, which waits for it. A function as `normalize` that takes no mask
    sees −10³⁰ from the end of a sequence up to the longest one: what it adds up over a row depends on the others.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() not in (2, 3):
            raise ValueError(f"{name} has shape {list(x.shape)}; expected [total, D] or [total, heads, D]")
    offsets_q = _offsets("cu_seqlens_q", cu_seqlens_q, q)
    offsets_k = _offsets("cu_seqlens_k", cu_seqlens_k, k) if cu_seqlens_k is not None else offsets_q
    if not len(k) == len(v) or (cu_seqlens_k is None and len(q) != len(k)):
        raise ValueError(
            f"q has {len(q)} rows, k {len(k)} and v {len(v)}; every key needs a value, and keys of other lengths than "
            "the queries' need cu_seqlens_k"
        )
    pairs = (q, offsets_q), (k, offsets_k), (v, offsets_k)
    batch = JaggedBatch(*(Sequences(x, offsets, offsets.diff()) for x, offsets in pairs))
    z, w = attend_sequences(batch, weights=weights, **options)
    return z if w is None else (z, w)


def _offsets(name: str, cu_seqlens: Tensor, x: Tensor) -> Int[Tensor, " b_and_one"]:
    if cu_seqlens.dim() != 1 or not len(cu_seqlens) or cu_seqlens.is_floating_point() or cu_seqlens.is_complex():
        kind = f"{cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
        raise ValueError(f"{name} has the whole numbers 0, n_1, n_1 + n_2, …, one more than sequences; got {kind}")
    offsets = cu_seqlens.to(device=x.device, dtype=torch.int64)
    if readable(cu_seqlens):  # of a GPU too: the longest of them is read anyway, and a kernel would read past the end
        numbers = cu_seqlens.tolist()
        if numbers[0] or numbers[-1] != x.shape[0] or numbers != sorted(numbers):
            raise ValueError(
                f"{name} goes from 0 to the number of rows, {x.shape[0]}, and never down; got {numbers[:8]}"
            )
    return offsets
