"""The fused backend: a kernel of the energy's form where there is one, else the formula in blocks of queries.

The formula a block of rows at a time: every energy, normalizer and mask, in O(T) memory.

A block's rows are whole (all their keys), so any normalizer applies as it stands. The backward computes each block
again instead of keeping it. Inside torch.compile there is one block, the whole matrix: there a walk would be unrolled
into the graph, and once more for every length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from ..blocks import TensorVersions, exact, no_kernel, readable
from ..energies import TRITON, check_pairwise
from ..kernels import KernelArguments, additive

if TYPE_CHECKING:
    from torch import Tensor

    from ..masks import Interval
    from ..request import Request

BLOCK = 1 << 18
"""Numbers in one block: 1 MiB of float32, so that the few alive while it is computed stay in cache."""


def run_blocks(request: Request) -> tuple[Tensor, Tensor | None]:
    energies, normalize, rate = request.energies.flat(), request.normalize, request.dropout
    v = energies.flatten(request.energies.per_query_head(request.v))
    # Checked for a single block too: `Weights` uses other blocks, and a short test must fail like a long run.
    check_pairwise(energies.form, energies.a, energies.b)
    first, two, every = slice(0, 1), slice(0, min(2, energies.queries)), slice(0, energies.keys)
    normalize.check_rows(lambda: energies.block(first, two, every, normalize.absent))
    # A learned bias is a whole matrix, and so is its gradient, which every block would write again.
    learned = [x for part in energies.modifiers if not part.opaque for x in part.tensors()]
    cut = [(slice(0, energies.count), slice(0, energies.queries))]
    if energies.count and readable(energies.a) and not any(x.requires_grad for x in learned):
        cut = [
            (slice(n.start, n.stop), slice(i.start, i.stop))
            for n, i in energies.blocks(energies.count, energies.queries, BLOCK)
        ]
    # What the backward computes blocks from again.
    versions = TensorVersions([*request.references(), *request.tensors()] if len(cut) > 1 else ())

    # Dropout of each block has a generator of its own: threads share PyTorch's, and the backward draws again.
    seed = int(torch.randint(2**62, ())) if rate and readable(energies.a) else None

    def rows(n: slice, i: slice) -> tuple[Tensor, Tensor]:
        """z and the row state of one block."""
        versions.require_unchanged(
            "so its gradient cannot be computed; change a copy, or change it after the backward pass"
        )
        own = normalize.of_block(energies.batch, n)
        e = energies.block(n, i, every, normalize.absent)  # [n, rows, T_k]
        with exact(e.device):
            w, state = own.both(e) if request.weights else (own(e), e.new_empty(0, 0))
            if rate:
                place = n.start * energies.queries + i.start
                draws = None if seed is None else torch.Generator(w.device).manual_seed(seed + place)
                w = w * torch.empty_like(w).bernoulli_(1 - rate, generator=draws).div_(1 - rate)
            return w @ v[n].to(w.dtype), state.detach()

    if len(cut) == 1:
        out, state = rows(*cut[0])
    elif torch.is_grad_enabled():
        parts = [checkpoint(rows, n, i, use_reentrant=False) for n, i in cut]
        out, state = (torch.cat([x.flatten(0, 1) for x in xs]) for xs in zip(*parts, strict=True))
    else:
        # Allocated before the first block: small survivors between large temporaries would keep glibc from using the
        # same memory for the next block, and O(T) tensors would cost O(T²) memory.
        kind = torch.long if normalize.selects_key else energies.precision
        out = v.new_empty(energies.count, energies.queries, v.shape[-1], dtype=energies.precision)
        state = energies.a.new_empty((energies.count, energies.queries) if request.weights else 0, dtype=kind)
        for n, i in cut:
            out[n, i], own = rows(n, i)
            if request.weights:
                state[n, i] = own
    out = out.to(request.v.dtype).reshape(*energies.batch, energies.queries, v.shape[-1])
    return out, state.reshape(*energies.batch, energies.queries) if request.weights else None


def refusal(request: Request) -> str | None:
    return no_kernel()


def how(request: Request) -> str:
    reason, _ = _op(request)
    if reason is None:
        return "the additive kernel, in O(T) memory"
    return "the formula in blocks of rows, in O(T) memory" + (f" (the additive kernel {reason})" if reason else "")


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    reason, bounds = _op(request)
    if reason is not None:
        return run_blocks(request)
    energies = request.energies.flat()
    v = energies.flatten(request.energies.per_query_head(request.v))
    # Drawn from PyTorch's generator, so that torch.manual_seed decides the dropout here as everywhere.
    seed = torch.randint(2**62, (), device=v.device) if request.dropout else None
    start, stop = bounds or (None, None)
    options = KernelArguments(start, stop, seed, 1 / request.normalize.temperature, request.dropout)
    form: Any = energies.form
    out, state = additive.attention(energies.a, energies.b, form.weight, v, options)
    if len(energies.batch) != 1:
        out, state = out.reshape(*energies.batch, *out.shape[1:]), state.reshape(*energies.batch, energies.queries)
    return out, state


def _op(request: Request) -> tuple[str | None, Interval | None]:
    """Why the op does not apply (None if it does, "" where there is none for the form), and the mask's intervals."""
    energies, normalize = request.energies, request.normalize
    device = energies.a.device.type
    if energies.form.kernel != "tanh":
        return "", None
    if not (energies.a.numel() and energies.b.numel() and request.v.numel() and energies.count):
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
