"""Ablation: the model run again with chosen heads silent or chosen tokens unseen, and what that changes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..capture import dispatch, taps
from ..capture.call import CROSS, layer_of
from ..capture.record import CLOSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor, nn

_lock = threading.RLock()
_fast = True
"""Whether nn.MultiheadAttention had its fast path before the first of the blocks now open, in whatever thread."""


@contextmanager
def ablate(
    model: nn.Module, *, heads: Mapping[int | str, Sequence[int]] | None = None, tokens: Sequence[int] = ()
) -> Iterator[None]:
    """Inside the block, chosen heads give zeros and nobody sees the chosen tokens.

        with ablate(model, heads={3: [5], "decoder": [0, 1]}, tokens=[0]):
            model(**inputs)

    `heads` are named by layer, its number or any whole part of its name. `tokens` are keys of self-attention; a query
    whose every key is closed is left as it was. Works where attention is called as scaled_dot_product_attention
    (nn.MultiheadAttention too, which leaves its fast path meanwhile) or through Hugging Face's interface, in the thread
    that opened the block. A layer or a token that the model never came to is an error.
    """
    global _fast
    if not heads and not tokens:
        raise ValueError("ablate what? Give heads={layer: [head, …]}, tokens=[place, …], or both")
    change = Change(model, dict(heads or {}), list(tokens))
    taps.install(model)
    with _lock:
        if not dispatch.changes:
            _fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        dispatch.changes = (*dispatch.changes, change)
    try:
        yield
    finally:
        with _lock:
            dispatch.changes = tuple(x for x in dispatch.changes if x is not change)
            if not dispatch.changes:  # the last block open in any thread
                torch.backends.mha.set_fastpath_enabled(_fast)
        taps.remove()
    unused = change.unused()
    if unused:
        raise ValueError(
            f"nothing was ablated in {', '.join(unused)}: {type(model).__name__} called no attention there that could "
            "be changed"
        )


class Change:
    """What is to be different while the block runs. The taps ask it."""

    def __init__(self, model: nn.Module, heads: dict[int | str, Sequence[int]], tokens: list[int]) -> None:
        self.heads, self.tokens = heads, tokens
        self.model = model
        self.names = {id(part): name or type(model).__name__ for name, part in model.named_modules()}
        self.thread = threading.get_ident()
        self._told = {name: getattr(part, "is_cross_attention", None) for name, part in model.named_modules()}
        self._done: set[int | str] = set()  # layers in which a head was silenced
        self._closed: set[int] = set()  # tokens

    def unused(self) -> list[str]:
        """What was asked for and never met."""
        layers = [f"layer {x}" if isinstance(x, int) else x for x in self.heads if x not in self._done]
        return layers + [f"token {x}" for x in self.tokens if x not in self._closed]

    def silent(self, name: str) -> list[int]:
        """The heads of this layer that give zeros."""
        return [head for layer in self._layers(name) for head in self.heads[layer]]

    def _layers(self, name: str) -> list[int | str]:
        """Which of the layers asked for this one is."""
        return [x for x in self.heads if (layer_of(name) == x if isinstance(x, int) else f".{x}." in f".{name}.")]

    def output(self, name: str, out: Tensor, dim: int) -> Tensor:
        """The output with silent heads zero; heads are dimension `dim`."""
        silent = self.silent(name)
        if not silent:
            return out
        if max(silent) >= out.shape[dim]:
            raise ValueError(f"{name} has {out.shape[dim]} heads, asked to silence head {max(silent)}")
        self._done.update(self._layers(name))
        return out.index_fill(dim, torch.tensor(silent, device=out.device), 0)

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask with the tokens closed, for queries that still see something then."""
        queries, keys = q.shape[-2], k.shape[-2]
        tokens = [token for token in self.tokens if token < keys]
        if not tokens or self._cross(name, mask is None and not is_causal and 1 < queries != keys):
            return mask, is_causal
        self._closed.update(tokens)
        before = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
        if is_causal:
            before = before.tril()
        open_ = before.clone()
        open_[:, tokens] = False
        if mask is None:
            return torch.where(open_.any(-1, keepdim=True), open_, before), False
        if mask.dtype == torch.bool:
            both = mask & open_
            return torch.where(both.any(-1, keepdim=True), both, mask), False
        left = ((mask > CLOSED) & open_).any(-1, keepdim=True)
        return mask.masked_fill(~open_ & left, torch.finfo(mask.dtype).min), False

    def _cross(self, name: str, apart: bool) -> bool:
        """Whether this layer's keys are those of another text, by what the module says or else by its name."""
        told = self._told.get(name)
        return bool(told) if told is not None else apart or CROSS.search(name.lower()) is not None


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
