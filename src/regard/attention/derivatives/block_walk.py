"""A function computed block by block, with derivatives of every order computed block by block, too.

    walk:  out[rows of the block] += function(rows of the block, whole matrices of the block, shared tensors)

The gradient of such a walk is a walk over the same blocks: of the function's gradient, given the cotangents of its
outputs. So one class is its own derivative, and no order keeps more than its inputs and outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..torch_transforms import batched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    Cut = tuple[slice, slice]
    """Which matrices and which of their rows a block has."""
    BlockFunction = Callable[[Cut, torch.Generator | None, list[Tensor]], list[Tensor]]

Extent = Literal["rows", "matrices", "all"]
"""What of a tensor a block has: its rows [n, i], its matrices [n], or all of it."""


@dataclass(frozen=True)
class Walk:
    """A function of blocks, what of its inputs and outputs a block has, and the outputs' shapes."""

    function: BlockFunction
    blocks: Sequence[Cut]
    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]
    shapes: tuple[tuple[int, ...], ...]
    precision: torch.dtype
    """What sums over blocks are held in."""
    seed: int | None = None
    """Of a generator that every walk over these blocks starts anew; None where nothing is drawn from one."""
    draws: bool = False
    """Whether the function may draw from PyTorch's generator, too."""
    rng: Tensor | None = None
    """What state PyTorch's generator had in the first walk; None in that one."""

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return _WalkFunction.apply(self, *inputs)  # type: ignore[no-any-return]

    def compute(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        device = inputs[0].device
        # Everything that outlives a block is allocated before the first one. Small survivors between large temporaries
        # would keep glibc from using the same memory for the next block, and O(T) tensors would cost O(T²) memory.
        # Of batched cotangents the sums are batched, too.
        like = next((x for x in inputs if batched(x)), inputs[0])
        totals = [like.new_zeros(shape, dtype=self.precision) for shape in self.shapes]
        generator = None if self.seed is None else torch.Generator(device).manual_seed(self.seed)
        with torch.random.fork_rng(devices=[], enabled=self.rng is not None):
            if self.rng is not None:
                torch.set_rng_state(self.rng)
            for cut in self.blocks:
                parts = [_cut(x, part, cut) for x, part in zip(inputs, self.inputs, strict=True)]
                results = self.function(cut, generator, parts)
                for total, part, result in zip(totals, self.outputs, results, strict=True):
                    _cut(total, part, cut).add_(result)
        return tuple(totals)

    def gradient(self, inputs: Sequence[Tensor], needed: Sequence[bool], rng: Tensor | None) -> Walk:
        """The walk from inputs and cotangents of the outputs to the gradients of the inputs that need one."""
        count, kept = len(inputs), [at for at, need in enumerate(needed) if need]

        def function(cut: Cut, generator: torch.Generator | None, arguments: list[Tensor]) -> list[Tensor]:
            again = torch.is_grad_enabled()  # whether this gradient is differentiated in turn
            with torch.enable_grad():
                # Tensors of its own: one that is given twice has two gradients, and no graph outside is walked.
                own = [x.view_as(x) if again else x.detach() for x in arguments[:count]]
                wanted = [own[at] if own[at].requires_grad else own[at].requires_grad_() for at in kept]
                every = zip(self.function(cut, generator, own), arguments[count:], strict=True)
                pairs = [(result, cotangent) for result, cotangent in every if result.requires_grad]
                if not pairs:
                    return [torch.zeros_like(x) for x in wanted]
                results, cotangents = zip(*pairs, strict=True)
                gradients = torch.autograd.grad(results, wanted, cotangents, create_graph=again, allow_unused=True)
            return [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, wanted, strict=True)]

        return replace(
            self,
            function=function,
            inputs=(*self.inputs, *self.outputs),
            outputs=tuple(self.inputs[at] for at in kept),
            shapes=tuple(tuple(inputs[at].shape) for at in kept),
            rng=rng,
        )


class _WalkFunction(torch.autograd.Function):
    """The walk as an operation: its backward is the walk of the gradient, and is differentiable in the same way."""

    @staticmethod
    def forward(ctx: Any, walk: Walk, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.walk = walk
        ctx.rng = torch.get_rng_state() if walk.draws and walk.rng is None else walk.rng
        ctx.save_for_backward(*inputs)
        return walk.compute(inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        gradients = iter(ctx.walk.gradient(inputs, needed, ctx.rng)(*inputs, *cotangents))
        return (None, *(next(gradients).to(x.dtype) if need else None for x, need in zip(inputs, needed, strict=True)))


def _cut(x: Tensor, part: Extent, cut: Cut) -> Tensor:
    return x if part == "all" else x[cut] if part == "rows" else x[cut[0]]
