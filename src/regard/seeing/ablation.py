"""Ablation: the model run again with chosen heads silent or chosen tokens unseen, and what that changes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import taps, watching
from .call import layer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor, nn

_lock = threading.RLock()


@contextmanager
def ablate(
    model: nn.Module, *, heads: Mapping[int | str, Sequence[int]] | None = None, tokens: Sequence[int] = ()
) -> Iterator[None]:
    """Inside the block, chosen heads give zeros and nobody sees the chosen tokens.

        with ablate(model, heads={3: [5], "decoder": [0, 1]}, tokens=[0]):
            model(**inputs)

    `heads` are named by layer, its number or any whole part of its name. `tokens` are keys of self-attention; a query
    whose every key is closed is left as it was. Works where attention is called as scaled_dot_product_attention
    (nn.MultiheadAttention too, which leaves its fast path meanwhile) or through Hugging Face's interface.
    """
    if not heads and not tokens:
        raise ValueError("ablate what? Give heads={layer: [head, …]}, tokens=[place, …], or both")
    change = Change(model, dict(heads or {}), list(tokens))
    fast = torch.backends.mha.get_fastpath_enabled()
    taps.install(model)
    torch.backends.mha.set_fastpath_enabled(False)
    with _lock:
        watching.changes = (*watching.changes, change)
    try:
        yield
    finally:
        with _lock:
            watching.changes = tuple(x for x in watching.changes if x is not change)
        torch.backends.mha.set_fastpath_enabled(fast)
        taps.remove()
    if not change.used:
        raise ValueError(
            f"nothing was ablated: {type(model).__name__} called no attention that could be changed in "
            f"{', '.join(map(str, change.heads)) or 'any layer'}"
        )


class Change:
    """What is to be different while the block runs. The taps ask it."""

    def __init__(self, model: nn.Module, heads: dict[int | str, Sequence[int]], tokens: list[int]) -> None:
        self.heads, self.tokens, self.used = heads, tokens, False
        self.model = model
        self.names = {id(part): name or type(model).__name__ for name, part in model.named_modules()}

    def silent(self, name: str) -> list[int]:
        """The heads of this layer that give zeros."""
        found: list[int] = []
        for layer, heads in self.heads.items():
            if layer_of(name) == layer if isinstance(layer, int) else f".{layer}." in f".{name}.":
                found += heads
        return found

    def output(self, name: str, out: Tensor, dim: int) -> Tensor:
        """The output with silent heads zero; heads are dimension `dim`."""
        silent = self.silent(name)
        if not silent:
            return out
        if max(silent) >= out.shape[dim]:
            raise ValueError(f"{name} has {out.shape[dim]} heads, asked to silence head {max(silent)}")
        self.used = True
        return out.index_fill(dim, torch.tensor(silent, device=out.device), 0)

    def mask(self, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask with the tokens closed, for queries that still see something then."""
        queries, keys = q.shape[-2], k.shape[-2]
        tokens = [token for token in self.tokens if token < keys]
        if not tokens:
            return mask, is_causal
        self.used = True
        open_ = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        open_[:, tokens] = False
        seen = open_
        if is_causal:
            before = torch.ones_like(open_).tril()
            seen = torch.where((open_ & before).any(-1, keepdim=True), open_ & before, before)
        if mask is None:
            return seen, False
        if mask.dtype == torch.bool:
            both = mask & seen
            return torch.where(both.any(-1, keepdim=True), both, mask), False
        return mask.masked_fill(~seen, torch.finfo(mask.dtype).min), False


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """What changed between two outputs of logits [..., V]."""

    divergence: Float[Tensor, "..."]
    """KL(before ‖ after) in nats, place by place."""
    before: list[tuple[int, float]]
    """The five likeliest tokens at the last place, with their probabilities, before."""
    after: list[tuple[int, float]]


def difference(before: Float[Tensor, "... v"], after: Float[Tensor, "... v"]) -> Difference:
    """Compare the logits of a run and of one with something ablated."""
    if before.shape != after.shape:
        raise ValueError(f"outputs of one shape can be compared, got {list(before.shape)} and {list(after.shape)}")
    p, q = (x.detach().float().log_softmax(-1) for x in (before, after))
    divergence = (p.exp() * (p - q)).sum(-1)
    count = min(5, p.shape[-1])

    def likeliest(x: Tensor) -> list[tuple[int, float]]:
        top = x.reshape(-1, x.shape[-1])[-1].exp().topk(count)
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    return Difference(divergence, likeliest(p), likeliest(q))
