"""The fused backend: the additive kernel where it applies, else the formula a block of rows at a time, in O(T) memory.

A block's rows are whole (all the keys that they see, by the plan of the mask), so any normalizer applies as it stands.
The backward computes each block again instead of keeping it. Inside torch.compile there is one block, the whole matrix:
there a walk would be unrolled into the graph, and once more for every length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from ..block_plan import Cut
from ..energies import check_pairwise
from ..kernels import additive_cpu
from ..parts import TensorVersions, exact, no_kernel, positions, readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..energy_matrix import EnergyMatrix
    from ..normalizers import Normalizer

BLOCK = 1 << 18
"""Numbers in one block: 1 MiB of float32, so that the few alive while it is computed stay in cache."""


def run_blocks(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    kind, given = v.dtype, v
    v = energies.flatten(energies.per_query_head(v))
    energies = energies.flat()
    # Checked for a single block too: `Weights` uses other blocks, and a short test must fail like a long run.
    check_pairwise(energies.form, energies.a, energies.b)
    few = slice(0, 1), slice(0, min(2, energies.queries)), slice(0, energies.keys)
    normalize.check_rows(lambda: energies.block(*few, normalize.absent))
    # A learned bias is a whole matrix, and so is its gradient, which every block would write again.
    learned = [x for part in energies.modifiers if not part.opaque for x in part.tensors()]
    cuts: list[Any] = [(slice(0, energies.count), slice(0, energies.queries), slice(0, energies.keys))]
    if energies.count and energies.queries and readable(energies.a) and not any(x.requires_grad for x in learned):
        every = range(energies.count), range(energies.queries)
        cuts = list(energies.blocks(*every, BLOCK, whole=not normalize.pointwise))
    used: list[Tensor] = []  # what the backward computes blocks from again
    if len(cuts) > 1:
        used = [*energies.references(), *energies.learned(), *normalize.tensors(), *normalize.function_tensors(), given]
    versions = TensorVersions(used)

    # Dropout of each block has a generator of its own: threads share PyTorch's, and the backward draws again.
    seed = int(torch.randint(2**62, ())) if dropout and readable(energies.a) else None

    def block(
        energies: EnergyMatrix, normalize: Normalizer, a: Tensor, b: Tensor, v: Tensor, cut: Cut
    ) -> tuple[Tensor, Tensor]:
        """z and the row state of one block, from its queries, keys and values."""
        versions.require_unchanged(
            "so its gradient cannot be computed; change a copy, or change it after the backward pass"
        )
        n, i, j = cut[:3]
        own = normalize.of_block(energies.batch, n)
        planned = cut if isinstance(cut, Cut) else None  # inside torch.compile there is no plan
        e = energies.between(a, b, n, i, j, normalize.absent, None, planned)  # [n, rows, keys]
        with exact(e.device):
            w, state = own.both(e) if weights else (own(e), e.new_empty(0, 0))
            if weights and normalize.selects_key and not (isinstance(j, slice) and j.start == 0):
                state = torch.where(state < 0, state, positions(j, e.device)[state.clamp_min(0)])
            if dropout:
                place = n.start * energies.queries + i.start
                draws = None if seed is None else torch.Generator(w.device).manual_seed(seed + place)
                w = w * torch.empty_like(w).bernoulli_(1 - dropout, generator=draws).div_(1 - dropout)
            return w @ v.to(w.dtype), state.detach()

    if len(cuts) == 1:
        out, state = block(energies, normalize, *sides(energies, v, cuts[0]), cuts[0])
    else:
        out = v.new_empty(energies.count, energies.queries, v.shape[-1], dtype=energies.precision)
        shape = (energies.count, energies.queries) if weights else (0,)
        state = v.new_empty(shape, dtype=torch.long if normalize.selects_key else energies.precision)
        inputs = _Inputs(energies, normalize, v)
        opaque = any(part.opaque for part in (energies.form, normalize, *energies.modifiers))
        draws = opaque or normalize.samples  # a user's function may draw random numbers
        one = next(cuts[0].split(1))
        if torch.is_grad_enabled() and inputs.are_all(lambda e, w, x: block(e, w, *sides(e, x, one), one)[0]):
            out, state = _Blocks.apply(block, inputs, cuts, draws, out, state, *inputs.tensors)
        else:
            for cut in cuts:
                parts = (energies, normalize, *sides(energies, v, cut), cut)
                if torch.is_grad_enabled():  # dropout has seeds of its own
                    z, own = checkpoint(block, *parts, use_reentrant=False, preserve_rng_state=draws)
                else:
                    z, own = block(*parts)
                out[cut.n, cut.rows] = z
                if weights:
                    state[cut.n, cut.rows] = own
    out = out.to(kind).reshape(*energies.batch, energies.queries, v.shape[-1])
    return out, state.reshape(*energies.batch, energies.queries) if weights else None


def sides(energies: EnergyMatrix, v: Tensor, cut: Cut) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a block."""
    n, i, j = cut[:3]
    return energies.a[n][:, i], energies.b[n][:, j], v[n][:, j]


class _Inputs:
    """The tensors that blocks are computed from, and the same parts with copies of them that begin a graph."""

    def __init__(self, energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> None:
        self.energies, self.normalize, self.v = energies, normalize, v
        self.tensors: list[Tensor] = []
        self._with(lambda x: self.tensors.append(x) or x)  # type: ignore[func-returns-value]

    def _with(self, function: Callable[[Tensor], Tensor]) -> tuple[EnergyMatrix, Normalizer, Tensor]:
        return self.energies.map_tensors(function), self.normalize.map_tensors(function), function(self.v)

    def fresh(self) -> tuple[list[Tensor], tuple[EnergyMatrix, Normalizer, Tensor]]:
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in self.tensors]
        given = iter(leaves)
        return leaves, self._with(lambda x: next(given))

    def are_all(self, block: Callable[[EnergyMatrix, Normalizer, Tensor], Tensor]) -> bool:
        """Whether these tensors are all that has a gradient: a user's function may use others, in any way."""
        leaves, parts = self.fresh()
        known, seen, todo = {id(x) for x in leaves}, set(), [block(*parts).grad_fn]
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)  # of a node that accumulates the gradient of a leaf
            if leaf is not None and id(leaf) not in known:
                return False
            todo += [before for before, _ in node.next_functions]
        return True


class _Blocks(torch.autograd.Function):
    """All blocks as one node of the graph, whose backward computes each block again.

    With a node of its own for every block, small allocations would lie between large temporaries, and glibc could not
    use that memory for the next block: O(T²) of it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        block: Any,
        inputs: _Inputs,
        cuts: list[Cut],
        draws: bool,
        out: Tensor,
        state: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.random = (torch.get_rng_state(), *get_device_states(inputs.v)) if draws else None
        for cut in cuts:
            parts = sides(inputs.energies, inputs.v, cut)
            out[cut.n, cut.rows], own = block(inputs.energies, inputs.normalize, *parts, cut)
            if state.numel():
                state[cut.n, cut.rows] = own
        ctx.block, ctx.inputs, ctx.cuts = block, inputs, cuts
        ctx.mark_dirty(out, state)
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        leaves, (energies, normalize, v) = ctx.inputs.fresh()
        whole = energies.a, energies.b, v
        for x in whole:  # the gradients of blocks are added up in place: those of slices would each be as large as all
            x.grad = torch.zeros_like(x) if x.requires_grad else None
        cpu, devices, states = ctx.random or (None, [], [])
        with torch.random.fork_rng(devices, enabled=cpu is not None):
            if cpu is not None:  # the random numbers of the forward pass again
                torch.set_rng_state(cpu)
                set_device_states(devices, states)
            for cut in ctx.cuts:
                cut_out = zip(sides(energies, v, cut), whole, strict=True)
                own = [part.detach().requires_grad_(x.requires_grad) for part, x in cut_out]
                with torch.enable_grad():
                    z, _ = ctx.block(energies, normalize, *own, cut)
                if z.requires_grad:
                    torch.autograd.backward(z, slopes[0][cut.n, cut.rows])
                for x, part, places in zip(whole, own, (cut.rows, cut.cols, cut.cols), strict=True):
                    if part.grad is not None:
                        x.grad[cut.n][:, places] += part.grad
        return None, None, None, None, None, None, *(x.grad for x in leaves)


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str | None:
    return no_kernel()


def how(energies: EnergyMatrix, normalize: Normalizer, v: Tensor) -> str:
    reason, _ = additive_cpu.refusal(energies, normalize, v)
    if reason is None:
        return "the additive kernel, in O(T) memory"
    if energies.form.has_kernel(v.device.type, energies.precision):
        return "the additive kernel in blocks of rows, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" (the additive kernel {reason})" if reason else "")


def run(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    reason, bounds = additive_cpu.refusal(energies, normalize, v)
    if reason is None:
        return additive_cpu.attention(energies, normalize.temperature, v, bounds, dropout)
    return run_blocks(energies, normalize, v, dropout, weights)
