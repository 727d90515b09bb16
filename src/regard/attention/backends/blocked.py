"""The formula a block of rows at a time: every energy, normalizer and mask, in O(T) memory.

A block's rows are whole (all their keys), so any normalizer applies as it stands. The backward computes each block
again instead of keeping it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

from ..forms import PairForm, TanhForm
from ..hard import Hard
from ..modifiers import Bias
from ..transforms import transformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ..request import Request
    from ..scores import Scores

BLOCK = 1 << 18
"""Numbers in one block: 1 MiB of float32, so that the few alive while it is computed stay in cache."""


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    scores, v = request.scores.flat(), request.values
    v = v.expand(*scores.batch, *v.shape[-2:]).reshape(-1, *v.shape[-2:])
    work = _Work(request, scores)
    if len(work.cut) == 1 or transformed() or torch.compiler.is_compiling():
        out, state = work.joined(v)
    else:
        learned = _learned(scores) if torch.is_grad_enabled() else []
        out, state = _Recomputed.apply(work, scores.a, scores.b, v, *learned)
    out = out.to(request.v.dtype).reshape(*scores.batch, *out.shape[-2:])
    return out, state.reshape(*scores.batch, scores.queries) if request.weights else None


class _Work:
    """What to do for each block, and which blocks there are."""

    def __init__(self, request: Request, scores: Scores) -> None:
        self.request, self.scores = request, scores
        self.cut = [
            (slice(n.start, n.stop), slice(i.start, i.stop))
            for n, i in scores.blocks(scores.count, scores.queries, BLOCK)
        ]
        draws = request.dropout > 0 or (isinstance(request.normalize, Hard) and request.normalize.samples)
        self.seed = int(torch.randint(2**62, ())) if draws and len(self.cut) > 1 else None

    def rows(self, a: Tensor, b: Tensor, v: Tensor, n: slice, i: slice) -> tuple[Tensor, Tensor]:
        """z and the row state of one block: a [n, rows, d], b [n, T_k, d], v [n, T_k, d_v]."""
        normalize, rate = self.request.normalize, self.request.dropout
        e = self.scores.between(a, b, n, i, slice(0, self.scores.keys), normalize.absent)  # [n, rows, T_k]
        w, state = normalize.both(e) if self.request.weights else (normalize(e), e.new_empty(0))
        w = dropout(w, rate) if rate else w
        return w @ v.to(w.dtype), state.detach()

    def joined(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """All blocks as PyTorch's own graph: where there is only one, and inside torch.func and torch.compile."""
        scores, parts = self.scores, []
        for n, i in self.cut:
            block = scores.a[n, i], scores.b[n], v[n], n, i
            again = torch.compiler.is_compiling() and len(self.cut) > 1
            parts.append(checkpoint(self.rows, *block, use_reentrant=False) if again else self.rows(*block))
        abreast = sum(n == self.cut[0][0] for n, _ in self.cut)  # row blocks that make up one group of matrices
        out, state = (
            torch.cat([torch.cat(x[at : at + abreast], dim=1) for at in range(0, len(x), abreast)])
            for x in zip(*parts, strict=True)
        )
        return out, state

    @contextmanager
    def draws(self) -> Iterator[None]:
        """The same random numbers at every walk over the blocks, drawn from PyTorch's generator once."""
        if self.seed is None:
            yield
            return
        device = self.scores.a.device
        generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index]
        before = generator.get_state()
        generator.manual_seed(self.seed)
        try:
            yield
        finally:
            generator.set_state(before)


class _Recomputed(torch.autograd.Function):
    """Blocks without a graph; the backward builds each block's graph, uses it and drops it.

    Everything that outlives a block is allocated before the first one. Small survivors between large temporaries
    would keep glibc from using the same memory for the next block, and O(T) tensors would cost O(T²) memory.
    """

    @staticmethod
    def forward(ctx: Any, work: _Work, a: Tensor, b: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        ctx.work, ctx.learned = work, learned
        ctx.save_for_backward(a, b, v)
        scores, wanted = work.scores, work.request.weights
        out = v.new_empty(a.shape[0], a.shape[1], v.shape[2], dtype=scores.precision)
        hard = isinstance(work.request.normalize, Hard)
        state = torch.empty(a.shape[:2] if wanted else (0,), dtype=torch.long if hard else out.dtype, device=a.device)
        with work.draws():
            for n, i in work.cut:
                out[n, i], found = work.rows(a[n, i], b[n], v[n], n, i)
                if wanted:
                    state[n, i] = found
        ctx.mark_non_differentiable(state)
        return out, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        work, whole = ctx.work, ctx.saved_tensors
        gradients = [torch.zeros_like(x) for x in (*whole, *ctx.learned)]
        with work.draws(), torch.enable_grad():
            for n, i in work.cut:
                a, b, v = whole
                part = [x.detach().requires_grad_() for x in (a[n, i], b[n], v[n])]
                z, _ = work.rows(*part, n, i)
                if not z.requires_grad:
                    continue
                # What an energy learned may have a graph of its own behind it, which the next block needs too.
                found = torch.autograd.grad(
                    z, (*part, *ctx.learned), grad[n, i], retain_graph=bool(ctx.learned), allow_unused=True
                )
                for total, where, new in zip(gradients, ((n, i), n, n, *[...] * len(ctx.learned)), found, strict=True):
                    if new is not None:
                        total[where] += new
        return (None, *gradients)


def _learned(scores: Scores) -> list[Tensor]:
    """Every tensor besides a, b and v that the energies are differentiable by."""
    tensors = [modifier.bias for modifier in scores.modifiers if isinstance(modifier, Bias)]
    if isinstance(scores.form, TanhForm):
        tensors.append(scores.form.weight)
    tensors = [x for x in tensors if x.requires_grad]
    if isinstance(scores.form, PairForm):
        # A function may close over parameters: one energy tells, by the leaves of its graph.
        with torch.enable_grad():
            tensors += _leaves(scores.form(scores.a[:1, :1].detach(), scores.b[:1, :1].detach()))
    return tensors


def _leaves(root: Tensor) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    seen, open_nodes = set(), [root.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        open_nodes += [parent for parent, _ in node.next_functions]
    return list(found.values())
