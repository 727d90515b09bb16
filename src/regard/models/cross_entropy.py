"""Cross-entropy of a linear readout and its gradients, computed in chunks: the logits of all tokens are never held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class SourceTargetBatch(Protocol):
    """A batch as `regard.data.Batch` holds it: sources are ids, samples of sound or pixels, targets are ids."""

    source: Tensor
    source_lengths: Int[Tensor, "batch"]
    target: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, "batch"]


@dataclass
class Loss:
    """Sums over the target tokens of a batch: divide by `tokens` (of all processes) for the mean."""

    total: Float[Tensor, ""]  # with label smoothing; what is minimised
    nll: Float[Tensor, ""]  # without it, and without a gradient; exp(nll / tokens) is the perplexity
    tokens: Int[Tensor, ""]


class _CrossEntropy(torch.autograd.Function):
    """Both gradients are products with p − y, so forward computes them from p, a chunk of tokens at a time.

    With ε the smoothing, V the vocabulary and f, W the features and the matrix: logits = f Wᵀ, p = softmax(logits),
    total = Σ (1 − ε)(−log p_y) + ε/V Σ_v (−log p_v), and d total / d logits = p − (1 − ε) onehot(y) − ε/V.
    """

    @staticmethod
    def forward(
        ctx: Any, f: Tensor, w: Tensor, wanted: Tensor, real: Tensor | None, smoothing: float, rows: int, learns: bool
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(f.dtype, torch.float32)
        total, nll = (torch.zeros((), dtype=wide, device=f.device) for _ in range(2))
        to_f, to_w = (torch.empty_like(f), torch.zeros_like(w, dtype=wide)) if learns else (None, None)
        even = smoothing / len(w)  # ε/V
        column = even * w.sum(0) if learns else None
        for at in range(0, len(f), rows):
            here = slice(at, at + rows)
            log_p = torch.log_softmax(f[here] @ w.mT, dim=-1, dtype=wide)  # [rows, vocabulary]
            y = wanted[here, None]
            target, spread = log_p.gather(1, y)[:, 0], log_p.sum(1) if smoothing else None
            if real is not None:
                target = target * real[here]
                spread = None if spread is None else spread * real[here]
            nll -= target.sum()
            if spread is not None:
                total -= even * spread.sum()
            if to_f is None or to_w is None or column is None:
                continue
            p = log_p.exp_()
            p.scatter_add_(1, y, torch.full_like(y, smoothing - 1, dtype=wide))  # p − (1 − ε) onehot(y)
            features = f[here]
            if real is not None:
                p *= real[here, None]
                features = features * real[here, None]
            # ε/V is the same for every word, so its part of the products is a sum of columns or rows.
            p = p.to(f.dtype)
            torch.sub(p @ w, column if real is None else column * real[here, None], out=to_f[here])
            to_w = to_w.addmm_(p.mT, f[here]) if wide == f.dtype else to_w.add_(p.mT @ f[here])
            to_w -= even * features.sum(0)
        total += (1 - smoothing) * nll
        if learns:
            ctx.save_for_backward(to_f, to_w)
        ctx.dtype = w.dtype
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        to_f, to_w = ctx.saved_tensors
        return to_f * g.to(to_f.dtype), (to_w * g).to(ctx.dtype), None, None, None, None, None


def cross_entropy(
    features: Float[Tensor, "*batch width"],
    matrix: Float[Tensor, "vocabulary width"],
    wanted: Int[Tensor, "*batch"],
    real: Bool[Tensor, "*batch"],
    smoothing: float = 0.0,
) -> Loss:
    """−Σ log p(wanted) over the real positions, p = softmax(features · matrixᵀ), with label smoothing.

    Smoothing ε takes (1 − ε) of it plus ε of the mean over the vocabulary (Szegedy et al. 2016, section 7).
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, matrix = features.to(dtype), matrix.to(dtype)
    if device == "cpu":
        # Padding is removed before the product. A GPU would have to wait for the count, so there it is multiplied by 0.
        kept, wanted, weight = features[real], wanted[real], None
        rows = max(16, (1 << 22) // len(matrix))  # logits that stay in a CPU's cache
    else:
        kept, wanted, weight = features.flatten(0, -2), wanted.flatten(), real.flatten().to(torch.float32)
        rows = max(16, (1 << 28) // len(matrix))
    with torch.autocast(device, enabled=False):
        # An autograd.Function does not know whether gradients are enabled.
        learns = torch.is_grad_enabled() and (kept.requires_grad or matrix.requires_grad)
        total, nll = _CrossEntropy.apply(kept, matrix, wanted, weight, smoothing, rows, learns)
    return Loss(total, nll, real.sum())
