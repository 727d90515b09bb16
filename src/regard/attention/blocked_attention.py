"""The formula a block of rows at a time: every energy, normalizer and mask, in O(T) memory.

A block's rows are whole (all their keys), so any normalizer applies as it stands. The backward computes each block
again instead of keeping it. Inside torch.compile and torch.func there is one block, the whole matrix: there a walk
would be unrolled into the graph, and once more for every length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from .energies.energies import check_pairwise
from .torch_transforms import exact, readable

if TYPE_CHECKING:
    from torch import Tensor

    from .energies.lazy_energy_matrix import EnergyMatrix
    from .request import Request

BLOCK = 1 << 18
"""Numbers in one block: 1 MiB of float32, so that the few alive while it is computed stay in cache."""


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    energies = request.energies.flat()
    v = energies.flatten(request.energies.per_query_head(request.v))
    work = _Work(request, energies)
    # Also where there is one block: `Weights` computes others, and a short test should fail as a long run does.
    check_pairwise(energies.form, energies.a, energies.b)
    if len(work.cut) == 1:
        out, state = work.rows(energies, v, *work.cut[0])
    elif not torch.is_grad_enabled() or _is_known(request, energies):
        out, state = _Recomputed.apply(work, energies.a, energies.b, v, *_learned(energies))
    else:
        out, state = work.checkpointed(v)
    out = out.to(request.v.dtype).reshape(*energies.batch, *out.shape[-2:])
    return out, state.reshape(*energies.batch, energies.queries) if request.weights else None


class _Work:
    """What to do for each block, and which blocks there are."""

    def __init__(self, request: Request, energies: EnergyMatrix) -> None:
        self.request, self.energies = request, energies
        # A learned bias is a matrix itself, and so is its gradient, which every block would write anew.
        learned = [x for part in energies.modifiers if not part.opaque for x in part.tensors()]
        whole = not readable(energies.a) or any(x.requires_grad for x in learned)
        self.cut = [(slice(0, energies.count), slice(0, energies.queries))]
        if not whole and energies.count:
            self.cut = [
                (slice(n.start, n.stop), slice(i.start, i.stop))
                for n, i in energies.blocks(energies.count, energies.queries, BLOCK)
            ]
        draws = request.dropout > 0 or request.normalize.samples
        self.seed = int(torch.randint(2**62, ())) if draws and len(self.cut) > 1 else None

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The same random numbers at every walk over the blocks, and nobody else's; PyTorch's where nothing repeats."""
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def rows(
        self, energies: EnergyMatrix, v: Tensor, n: slice, i: slice, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """z and the row state of one block."""
        return self.block(energies, energies.a[n, i], energies.b[n], v[n], n, i, generator)

    def block(
        self,
        energies: EnergyMatrix,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        n: slice,
        i: slice,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """The same of rows already cut out: a [n, rows, d], b [n, T_k, d], v [n, T_k, d_v]."""
        normalize, rate = self.request.normalize.of_block(energies.batch, n), self.request.dropout
        e = energies.between(a, b, n, i, slice(0, energies.keys), normalize.absent)  # [n, rows, T_k]
        with exact(e.device):
            w, state = (
                normalize.both(e, generator) if self.request.weights else (normalize(e, generator), e.new_empty(0))
            )
            if rate:
                w = w * torch.empty_like(w).bernoulli_(1 - rate, generator=generator).div_(1 - rate)
            return w @ v.to(w.dtype), state.detach()

    def checkpointed(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks as PyTorch checkpoints them: for functions that close over parameters, whatever else they do."""
        parts = [
            checkpoint(self.rows, self.energies, v, n, i, use_reentrant=False)  # it restores the generator itself
            for n, i in self.cut
        ]
        abreast = sum(n == self.cut[0][0] for n, _ in self.cut)  # row blocks that make up one group of matrices
        out, state = (
            torch.cat([torch.cat(x[at : at + abreast], dim=-2 + (x[0].dim() < 3)) for at in range(0, len(x), abreast)])
            for x in zip(*parts, strict=True)
        )
        return out, state


class _Recomputed(torch.autograd.Function):
    """Blocks without a graph; the backward builds each block's graph, uses it and drops it.

    Everything that outlives a block is allocated before the first one. Small survivors between large temporaries
    would keep glibc from using the same memory for the next block, and O(T) tensors would cost O(T²) memory.
    """

    @staticmethod
    def forward(ctx: Any, work: _Work, a: Tensor, b: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        ctx.work, energies = work, work.energies
        ctx.save_for_backward(a, b, v, *learned)
        ctx.rng = torch.get_rng_state() if energies.form.opaque else None
        wanted = work.request.weights
        out = v.new_empty(a.shape[0], a.shape[1], v.shape[2], dtype=energies.precision)
        kind = torch.long if work.request.normalize.selects_key else out.dtype
        state = torch.empty(a.shape[:2] if wanted else (0,), dtype=kind, device=a.device)
        generator = work.generator(a.device)
        for n, i in work.cut:
            out[n, i], row_state = work.rows(energies, v, n, i, generator)
            if wanted:
                state[n, i] = row_state
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        work = ctx.work
        a, b, v, *learned = ctx.saved_tensors
        # Leaves of their own: what hooks and graphs hang on the user's tensors is run once, outside.
        leaves = [x.detach().requires_grad_() for x in learned]
        energies = work.energies
        if leaves:
            remaining = iter(leaves)
            energies = replace(energies, form=energies.form.map_tensors(lambda _: next(remaining)))
        gradients = [torch.zeros_like(x, dtype=energies.precision) for x in (a, b, v, *learned)]
        generator = work.generator(a.device)
        with torch.random.fork_rng(devices=[], enabled=ctx.rng is not None), torch.enable_grad():
            if ctx.rng is not None:
                torch.set_rng_state(ctx.rng)
            for n, i in work.cut:
                part = [x.detach().requires_grad_() for x in (a[n, i], b[n], v[n])]
                z, _ = work.block(energies, *part, n, i, generator)
                if not z.requires_grad:
                    continue
                new = torch.autograd.grad(z, (*part, *leaves), grad[n, i], allow_unused=True)
                for total, where, gradient in zip(gradients, ((n, i), n, n, *[...] * len(leaves)), new, strict=True):
                    if gradient is not None:
                        total[where] += gradient
        return (None, *(g.to(x.dtype) for g, x in zip(gradients, (a, b, v, *learned), strict=True)))


def _is_known(request: Request, energies: EnergyMatrix) -> bool:
    """Whether every tensor the result is differentiable by is one of ours to name: a, b, v and what is learned."""
    if request.normalize.opaque or any(x.opaque for x in energies.modifiers):
        return False
    if any(x.requires_grad for x in request.normalize.tensors()):
        return False
    if not energies.form.opaque:
        return True
    # Checkpointing restores autocast and a GPU's generator, whatever the function does with them.
    if energies.a.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    probe = energies.form(energies.a[:1, :1].detach(), energies.b[:1, :1].detach())
    return not probe.requires_grad  # else it closes over parameters


def _learned(energies: EnergyMatrix) -> list[Tensor]:
    return [] if energies.form.opaque else energies.form.tensors()
