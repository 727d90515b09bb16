"""Modules that write attention out, and the ways in which models compute scores before the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard import watch

B, H, T, D = 2, 3, 160, 8
Scores = Callable[[Tensor, Tensor], Tensor]
PAST = torch.ones(T, T, dtype=torch.bool).tril()
LEAST = torch.finfo(torch.bfloat16).min
CAUSAL = torch.zeros(B, 1, T, T).masked_fill(~PAST, LEAST)
PADDING = torch.zeros(B, 1, 1, T)
PADDING[1, ..., -9:] = LEAST
SLOPES = torch.arange(B * H).view(-1, 1, 1) * torch.linspace(-1, 0, T)


class Block(nn.Module):
    """A module that writes attention out; `weights` has those it used."""

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores, self.num_heads = scores, H
        self.weights: list[Tensor] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = self.scores(q, k)
        w = scores.softmax(-1).to(v.dtype)
        self.weights.append(w.detach().clone())
        return w.view(-1, *w.shape[-2:]) @ v.reshape(-1, *v.shape[-2:]) if w.dim() == 3 else w @ v


def inputs(dtype: torch.dtype = torch.bfloat16, length: int = T) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, length, D) * 2 for _ in range(3))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def seen_of(scores: Scores, *qkv: Tensor) -> tuple[Any, Block]:
    model = Block(scores)
    with torch.no_grad(), watch(model) as seen:
        model(*qkv)
    assert not torch._C._len_torch_function_stack(), "a mode stayed on the stack"
    return seen, model


def _in_place(q: Tensor, k: Tensor) -> Tensor:
    e = q @ k.mT
    e /= D**0.5
    e += CAUSAL.to(e.dtype)
    return e.float()


def _filled(q: Tensor, k: Tensor) -> Tensor:
    e = torch.matmul(q, k.transpose(2, 3)) * 0.25
    closed = (~PAST).view(1, 1, T, T).expand_as(e)
    e.masked_fill_(closed, LEAST)
    return e.float() + PADDING


def _merged(q: Tensor, k: Tensor) -> Tensor:
    e = torch.bmm(q.flatten(0, 1) * 0.5, k.flatten(0, 1).transpose(1, 2))
    e = e.view(B, H, T, T) + CAUSAL.to(e.dtype)
    return torch.max(e, torch.tensor(LEAST, dtype=e.dtype)).view(B * H, T, T)


def _with_slopes(q: Tensor, k: Tensor) -> Tensor:
    e = SLOPES.to(q.dtype).baddbmm(q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=0.3)
    return e.view(B, H, T, T) + CAUSAL.to(e.dtype)


def _einsum(q: Tensor, k: Tensor) -> Tensor:
    e = torch.einsum("bhkd,bhqd->bhqk", k, q) * torch.tensor(0.3)
    return torch.where(PAST, e, torch.tensor(LEAST, dtype=e.dtype))


def distances(q: Tensor, count: int = 2 * T) -> Tensor:
    """A vector for each distance."""
    angles = torch.arange(count)[:, None] * torch.logspace(0, -2, D)
    return angles.sin().to(q.dtype).expand(B, H, count, D)


def shifted(p: Tensor) -> Tensor:
    """XLNet: row i begins with column T − i."""
    p = p.reshape(B, H, 2 * T, T)[:, :, 1:, :].reshape(B, H, T, 2 * T - 1)
    return torch.index_select(p, 3, torch.arange(T))


def _padded_shift(p: Tensor) -> Tensor:
    """Transformer-XL: row i begins with column T − 1 − i."""
    p = torch.nn.functional.pad(p, (1, 0)).view(B, H, 2 * T, T)
    return p[:, :, 1:].view(B, H, T, 2 * T - 1)[..., :T]


def _far_distances(q: Tensor) -> Tensor:
    return distances(q, 3 * T)


def _shifted_by_two(p: Tensor) -> Tensor:
    """Funnel: row i begins with column 2 · T − 2 · i."""
    return p.reshape(B, H, 3 * T, T)[:, :, 2:, :].reshape(B, H, T, 3 * T - 2)[..., :T]


BUCKETS = (torch.arange(T)[:, None] - torch.arange(T)).clamp(-20, 19) + 20


def _disentangled(q: Tensor, k: Tensor) -> Tensor:
    """DeBERTa: from the query to the position of the key, and from the key to the position of the query."""
    r, score = distances(q, 40), 0
    score += torch.gather(q @ r.mT, -1, BUCKETS.expand(B, H, T, T)) * 0.5  # type: ignore[assignment]
    to_query = torch.gather(k @ (r + 0.5).mT, dim=-1, index=(39 - BUCKETS).expand(B, H, T, T)).transpose(-1, -2)
    score += to_query / 3
    return score  # type: ignore[return-value]


WAYS: dict[str, Scores] = {
    "in place": _in_place,
    "filled": _filled,
    "merged heads": _merged,
    "baddbmm": _with_slopes,
    "einsum and where": _einsum,
    "of the tensor": lambda q, k: (q @ k.mT).where(PAST, LEAST).div(3.0).sub(-PADDING.to(q.dtype)),
    "cast to float": lambda q, k: (q @ k.mT).float().mul(0.2).clamp(min=-1e30) + CAUSAL,
    "zeros": lambda q, k: torch.baddbmm(q.new_zeros(B * H, T, T), q.flatten(0, 1), k.flatten(0, 1).mT) * 0.3 + 0,
    "nothing between": lambda q, k: (q * 0.3) @ k.mT,
    "two products": lambda q, k: (q @ k.mT) / 3 + (q * 2) @ (k + 1).mT * 0.1 + CAUSAL.to(q.dtype),
    "three products": lambda q, k: 0 + (q @ k.mT + (q * 0.2) @ (k + 1).mT + k @ q.mT) * 0.3,
    "relative positions": lambda q, k: (q @ k.mT + shifted((q + 1) @ distances(q).mT)) * 0.3,
    "positions first": lambda q, k: shifted(q @ distances(q).mT * 0.5) + q @ k.mT,
    "padded positions": lambda q, k: q @ k.mT * 0.3 + _padded_shift(q @ distances(q)[..., 1:, :].mT),
    "every second position": lambda q, k: q @ k.mT * 0.3 + _shifted_by_two(q @ _far_distances(q).mT),
    "disentangled": lambda q, k: q @ (k / 3).mT + _disentangled(q, k) + CAUSAL.to(q.dtype),
    "transposed": lambda q, k: q @ k.mT * 0.1 + (k @ (q + 1).mT * 0.1).transpose(-1, -2),
    "gated": lambda q, k: (q @ k.mT / 3) * PAST.to(q.dtype) + -1e4 * (1 - PAST.to(q.dtype)),
}
