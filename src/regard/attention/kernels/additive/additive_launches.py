"""AdditiveLaunches: one pair of Triton kernels for additive attention, and how they are launched for each kind of call.

What Triton and the kernels ask of the arguments is worked out once for a kind of call, and kept: in a decoder's step
Python takes longer than the GPU does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..fast_triton_launch import dense_rows, kind, remember

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from jaxtyping import Float
    from torch import Tensor

    from .. import KernelArguments
    from ..fast_triton_launch import Launch


class ForwardLaunches(NamedTuple):
    step: Launch
    join: Launch | None
    """Joins the outputs of the splits; None where there is one."""
    splits: int
    """Parts of the keys, each of which is worked on by a program of its own."""


class BackwardLaunches(NamedTuple):
    step: Launch
    add_dw: Launch
    splits: int
    """Parts of the keys, each of which gives a part of da and dw."""
    in_float32: bool
    """Whether db and dv are added up in memory, query by query, which takes float32."""


class AdditiveLaunches:
    """`forward` and `backward` by the launches that two functions give for a kind of call."""

    def __init__(
        self,
        forward_launches: Callable[[Tensor, Tensor, Tensor, KernelArguments], ForwardLaunches],
        backward_launches: Callable[[Tensor, Tensor, Tensor, Tensor, KernelArguments], BackwardLaunches],
    ) -> None:
        self._forward_launches, self._backward_launches = forward_launches, backward_launches
        self._forwards: dict[Hashable, ForwardLaunches] = {}
        self._backwards: dict[Hashable, BackwardLaunches] = {}

    def forward(
        self,
        a: Float[Tensor, "n q d"],
        b: Float[Tensor, "n k d"],
        w: Float[Tensor, " d"],
        v: Float[Tensor, "n k d_v"],
        options: KernelArguments,
    ) -> tuple[Float[Tensor, "n q d_v"], Float[Tensor, "n q"]]:
        """Output and log-sum-exp; +∞ marks a row that sees no key."""
        a, b, w, v = dense_rows(a), dense_rows(b), dense_rows(w), dense_rows(v)
        start, stop, seed, scale, dropout = options
        key = (kind(a), kind(b), kind(w), kind(v), kind(start), kind(stop), kind(seed), scale, dropout, a.get_device())
        launches = self._forwards.get(key)
        if launches is None:
            launches = remember(self._forwards, key, self._forward_launches(a, b, v, options))
        (n, q, _), width, splits = a.shape, v.shape[2], launches.splits
        out, lse = v.new_empty((n, q, width)), a.new_empty((n, q), dtype=torch.float32)
        if launches.join is None:
            launches.step(a, b, w, v, start, stop, seed, out, lse)
        else:
            parts, states = lse.new_empty((splits, n, q, width)), lse.new_empty((splits, n, q))
            launches.step(a, b, w, v, start, stop, seed, parts, states)
            launches.join(parts, states, out, lse)
        return out, lse

    def backward(
        self,
        grad: Float[Tensor, "n q d_v"],
        grad_lse: Float[Tensor, "n q"] | None,
        a: Float[Tensor, "n q d"],
        b: Float[Tensor, "n k d"],
        w: Float[Tensor, " d"],
        v: Float[Tensor, "n k d_v"],
        out: Float[Tensor, "n q d_v"],
        lse: Float[Tensor, "n q"],
        options: KernelArguments,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of a, b, w and v, each in its tensor's dtype."""
        grad, a, b, w, v = dense_rows(grad), dense_rows(a), dense_rows(b), dense_rows(w), dense_rows(v)
        start, stop, seed, scale, dropout = options
        key = tuple(kind(x) for x in (grad, grad_lse, a, b, w, v, out, lse, start, stop, seed))
        key = (*key, scale, dropout, a.get_device())
        launches = self._backwards.get(key)
        if launches is None:
            launches = remember(self._backwards, key, self._backward_launches(grad, a, b, v, options))
        (n, q, d), splits, in_float32 = a.shape, launches.splits, launches.in_float32
        # What is written once has its final dtype; what is added up is float32 until then.
        da = a.new_empty((n, splits, q, d), dtype=a.dtype if splits == 1 else torch.float32)
        db = b.new_empty(b.shape, dtype=torch.float32 if in_float32 else b.dtype)
        dv = v.new_empty(v.shape, dtype=torch.float32 if in_float32 else v.dtype)
        parts, dw = lse.new_empty((n * splits, d)), w.new_empty(d)
        launches.step(grad, grad_lse, a, b, w, v, out, lse, start, stop, seed, da, db, parts, dv)
        launches.add_dw(parts, dw)
        da = da[:, 0] if splits == 1 else da.sum(1).to(a.dtype)
        return da, db.to(b.dtype), dw, dv.to(v.dtype)
