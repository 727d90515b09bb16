"""The formula a block of rows at a time: every energy, normalizer and mask, in O(T) memory.

A block's rows are whole (all their keys), so any normalizer applies as it stands. The backward computes each block
again instead of keeping it. Inside torch.compile and torch.func there is one block, the whole matrix: there a walk
would be unrolled into the graph, and once more for every length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from .derivatives.block_walk import Walk
from .derivatives.second_derivatives import differentiable_again
from .energies.energies import check_pairwise
from .tensor_versions import TensorVersions
from .torch_transforms import exact, forward_mode, readable, traced

if TYPE_CHECKING:
    from torch import Tensor

    from .derivatives.block_walk import Cut, Extent
    from .energies.lazy_energy_matrix import EnergyMatrix
    from .normalizers.normalizer import Normalizer
    from .request import Request

NO_GRADIENT = "so its gradient cannot be computed; change a copy, or change it after the backward pass"

BLOCK = 1 << 18
"""Numbers in one block: 1 MiB of float32, so that the few alive while it is computed stay in cache."""


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    energies = request.energies.flat()
    v = energies.flatten(request.energies.per_query_head(request.v))
    work = _Work(request, energies)
    # Checked for a single block too: `Weights` uses other blocks, and a short test must fail like a long run.
    check_pairwise(energies.form, energies.a, energies.b)
    first, two, every = slice(0, 1), slice(0, min(2, energies.queries)), slice(0, energies.keys)
    request.normalize.check_rows(lambda: energies.block(first, two, every, request.normalize.absent))
    if len(work.cut) == 1:
        out, state = work.rows(energies, v, *work.cut[0])
    elif not torch.is_grad_enabled() or _is_known(request, energies):
        out, state = work.walked(v)
    else:
        out, state = work.checkpointed(v)
    out = out.to(request.v.dtype).reshape(*energies.batch, *out.shape[-2:])
    return out, state.reshape(*energies.batch, energies.queries) if request.weights else None


def differentiable(request: Request, out: Tensor) -> Tensor:
    """`out`, what a kernel computed for the request, with second derivatives from the formula."""
    if not out.requires_grad or traced():
        return out
    versions = TensorVersions(request.references())

    def formula(*tensors: Tensor) -> Tensor:
        versions.require_unchanged(NO_GRADIENT)
        if request.dropout or any(x.opaque for x in request.energies.modifiers):
            reason = "with dropout" if request.dropout else "with a function that modifies energies"
            raise NotImplementedError(
                f'attention {reason} has no second derivative on this backend; use attend(..., backend="reference")'
            )
        return run(replace(request.with_tensors(*tensors), weights=False))[0]

    return differentiable_again(out, formula, *request.tensors())


class _Work:
    """The computation of each block, and the list of blocks."""

    def __init__(self, request: Request, energies: EnergyMatrix) -> None:
        self.request, self.energies = request, energies
        # A learned bias is a whole matrix, and so is its gradient, which every block would write again.
        learned = [x for part in energies.modifiers if not part.opaque for x in part.tensors()]
        whole = not readable(energies.a) or forward_mode() or any(x.requires_grad for x in learned)
        self.cut = [(slice(0, energies.count), slice(0, energies.queries))]
        if not whole and energies.count:
            self.cut = [
                (slice(n.start, n.stop), slice(i.start, i.stop))
                for n, i in energies.blocks(energies.count, energies.queries, BLOCK)
            ]
        # What the backward computes blocks from again.
        self.versions = TensorVersions([*request.references(), *request.tensors()] if len(self.cut) > 1 else ())
        draws = request.dropout > 0 or request.normalize.samples
        self.seed = int(torch.randint(2**62, ())) if draws and len(self.cut) > 1 else None

    def rows(
        self, energies: EnergyMatrix, v: Tensor, n: slice, i: slice, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """z and the row state of one block."""
        return self.block(energies, self.request.normalize, energies.a[n, i], energies.b[n], v[n], n, i, generator)

    def block(
        self,
        energies: EnergyMatrix,
        normalize: Normalizer,
        a: Tensor,
        b: Tensor,
        v: Tensor,
        n: slice,
        i: slice,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """The same for rows that are already selected: a [n, rows, d], b [n, T_k, d], v [n, T_k, d_v]."""
        self.versions.require_unchanged(NO_GRADIENT)
        normalize, rate = normalize.of_block(energies.batch, n), self.request.dropout
        e = energies.between(a, b, n, i, slice(0, energies.keys), normalize.absent)  # [n, rows, T_k]
        with exact(e.device):
            w, state = (
                normalize.both(e, generator) if self.request.weights else (normalize(e, generator), e.new_empty(0))
            )
            if rate:
                w = w * torch.empty_like(w).bernoulli_(1 - rate, generator=generator).div_(1 - rate)
            return energies.block_average(w, v, n, i, not normalize.nonnegative), state.detach()

    def walked(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks without a graph: the backward builds each block's graph, uses it and drops it."""
        energies, request = self.energies, self.request
        a, b, learned = energies.a, energies.b, [*_learned(energies), *request.normalize.tensors()]
        kind = torch.long if request.normalize.selects_key else energies.precision
        state = torch.empty(a.shape[:2] if request.weights else (0,), dtype=kind, device=a.device)

        def function(cut: Cut, generator: torch.Generator | None, parts: list[Tensor]) -> list[Tensor]:
            remaining = iter(parts[3:])
            form, normalize = energies.form, request.normalize
            if not form.opaque:
                form = form.map_tensors(lambda _: next(remaining))
            normalize = normalize.map_tensors(lambda _: next(remaining))
            a, b, v = parts[:3]
            z, row_state = self.block(replace(energies, form=form), normalize, a, b, v, *cut, generator)
            if request.weights and not torch.is_grad_enabled():
                state[cut] = row_state
            return [z]

        shared: list[Extent] = ["all"] * len(learned)
        walk = Walk(
            function,
            self.cut,
            inputs=("rows", "matrices", "matrices", *shared),
            outputs=("rows",),
            shapes=((a.shape[0], a.shape[1], v.shape[2]),),
            precision=energies.precision,
            seed=self.seed,
            draws=energies.form.opaque,
        )
        (out,) = walk(a, b, v, *learned)
        return out, state

    def checkpointed(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Blocks by torch.utils.checkpoint, for functions that close over parameters."""
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


def _is_known(request: Request, energies: EnergyMatrix) -> bool:
    """Whether gradients go only to tensors that are known here: a, b, v and learned parameters."""
    if request.normalize.opaque or any(x.opaque for x in energies.modifiers):
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
