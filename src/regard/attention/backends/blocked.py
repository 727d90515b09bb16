"""The formula a block of rows at a time: every energy, normalizer and mask, in O(T) memory.

A block's rows are whole (all their keys), so any normalizer applies as it stands. Blocks are checkpointed: the
backward computes each again instead of keeping it, also for energies that are closures over parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from ..request import Request

BLOCK = 1 << 22
"""Numbers held at once by one block: 16 MiB of float32, a few of which are alive while it is computed."""


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    scores, normalize = request.scores.flat(), request.normalize
    v = request.values
    v = v.expand(*scores.batch, *v.shape[-2:]).reshape(-1, *v.shape[-2:])

    def rows(n: slice, i: slice) -> tuple[Tensor, Tensor | None]:
        e = scores.block(n, i, slice(0, scores.keys), normalize.absent)  # [n, rows, T_k]
        w, state = normalize.both(e) if request.weights else (normalize(e), None)
        w = dropout(w, request.dropout) if request.dropout else w
        return w @ v[n].to(w.dtype), None if state is None else state.detach()

    def span(n: range, i: range) -> tuple[Tensor, Tensor | None]:
        part = slice(n.start, n.stop), slice(i.start, i.stop)
        return checkpoint(rows, *part, use_reentrant=False) if again else rows(*part)

    cut = list(scores.blocks(scores.count, scores.queries, BLOCK))
    again = len(cut) > 1 and torch.is_grad_enabled() and not _transformed()
    parts = [span(n, i) for n, i in cut]
    abreast = sum(n == cut[0][0] for n, _ in cut)  # row blocks that make up one group of matrices

    def joined(pieces: list[Tensor]) -> Tensor:
        groups = [torch.cat(pieces[at : at + abreast], dim=1) for at in range(0, len(pieces), abreast)]
        whole = torch.cat(groups)
        return whole.reshape(*scores.batch, *whole.shape[1:])

    out = joined([z for z, _ in parts]).to(request.v.dtype)
    return out, joined([state for _, state in parts if state is not None]) if request.weights else None


def _transformed() -> bool:
    """Inside torch.func.grad and friends, which cannot checkpoint: then a block is kept, and still exact."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None
