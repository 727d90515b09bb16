"""Ablation: a run of the model with chosen heads set to zero or chosen tokens masked, and how its output differs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..capture.module_depth import ModuleDepths, kinds_of
from ..effects.interventions import ModelIntervention, applied, without_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxtyping import Float
    from torch import Tensor, nn


@contextmanager
def ablate(
    model: nn.Module, *, heads: Mapping[int | str, Sequence[int]] | None = None, tokens: Sequence[int] = ()
) -> Iterator[None]:
    """Inside the block, chosen heads output zeros and chosen tokens are masked.

        with ablate(model, heads={3: [5], "decoder": [0, 1]}, tokens=[0]):
            model(**inputs)

    Layers are named by their depth among the attention modules of a stack (`call.layer`), or by whole components of
    their name. `tokens` are keys of self-attention; a query all of whose keys would be masked keeps them. Works for
    calls of scaled_dot_product_attention (nn.MultiheadAttention included, without its fast path) and of Hugging Face's
    interface, in the thread that opened the block. Attention that a module writes out (a softmax and a product), linear
    attention, flex_attention and `regard.attend` can lose heads, not tokens. A layer or a token that the model never
    reached is an error.
    """
    if not heads and not tokens:
        raise ValueError("nothing to ablate: give heads={layer: [head, …]}, tokens=[position, …], or both")
    negative = [x for numbers in (*(heads or {}).values(), tokens) for x in numbers if x < 0]
    if negative:
        raise ValueError(f"heads and tokens are counted from 0; got {', '.join(map(str, negative))}")
    ablation = Ablation(model, dict(heads or {}), list(tokens))
    with applied(ablation):
        yield
    unused = ablation.unused()
    if unused:
        raise ValueError(
            f"nothing was ablated in {', '.join(unused)}: {type(model).__name__} called no attention there that could "
            "be changed"
        )


class Ablation(ModelIntervention):
    """What an `ablate` block changes; the taps apply it."""

    def __init__(self, model: nn.Module, heads: dict[int | str, Sequence[int]], tokens: list[int]) -> None:
        super().__init__(model)
        self.heads, self.tokens = heads, tokens
        self._depths = ModuleDepths(kinds_of(self.parts))
        self._ablated_layers: set[int | str] = set()
        self._masked_tokens: set[int] = set()

    def unused(self) -> list[str]:
        """The layers and tokens that the model never reached."""
        layers = [f"layer {x}" if isinstance(x, int) else x for x in self.heads if x not in self._ablated_layers]
        return layers + [f"token {x}" for x in self.tokens if x not in self._masked_tokens]

    def _layers(self, name: str) -> list[int | str]:
        """The keys of `heads` that mean this module."""
        return [layer for layer in self.heads if self._depths.selects(name, layer)]

    def describe(self, name: str) -> str:
        """What is changed in this module, in words for a trace; empty if nothing is."""
        heads = sorted({head for layer in self._layers(name) for head in self.heads[layer]})
        parts = [f"heads {', '.join(map(str, heads))}"] if heads else []
        if self.tokens and not self.is_cross(name, False):
            parts.append(f"tokens {', '.join(map(str, self.tokens))}")
        return "; ".join(parts)

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        """The output with ablated heads set to zero.

        Heads are dimension `dim`. If there are `count` of them and the dimension is longer, it is [B · heads].
        """
        layers = self._layers(name)
        heads = {head for layer in layers for head in self.heads[layer]}
        if not heads:
            return out
        count = out.shape[dim] if count is None else count
        if max(heads) >= count:
            raise ValueError(f"{name} has {count} heads; head {max(heads)} cannot be ablated")
        self._ablated_layers.update(layers)
        at = [n for n in range(out.shape[dim]) if n % count in heads]
        return out.index_fill(dim, torch.tensor(at, device=out.device), 0)

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        """Refuse what cannot be changed in attention that a module writes out."""
        if self._layers(name) and not has_heads:
            raise ValueError(
                f"{name} writes its attention out, and its product with values has no axis of heads; its heads cannot "
                "be ablated"
            )
        super().check_written_out(name, queries, keys, has_heads)

    def check_head_axis(self, name: str, out: Tensor) -> None:
        if self._layers(name):
            super().check_head_axis(name, out)

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask without the ablated tokens, for queries that have other keys left."""
        queries, keys = q.shape[-2], k.shape[-2]
        tokens = [token for token in self.tokens if token < keys]
        if not tokens or self.is_cross(name, mask is None and not is_causal and 1 < queries != keys):
            return mask, is_causal
        self._masked_tokens.update(tokens)
        closed = torch.zeros(keys, dtype=torch.bool, device=q.device)
        closed[tokens] = True
        return without_keys(closed, mask, is_causal, q), False


@dataclass(frozen=True, slots=True, eq=False)
class OutputDifference:
    """The difference between two outputs of logits [..., V]."""

    divergence: Float[Tensor, "..."]
    """KL(before ‖ after) in nats, at each position."""
    before: list[tuple[int, float]]
    """The five likeliest tokens at the last position, with their probabilities, before."""
    after: list[tuple[int, float]]
    """The same after."""


def output_difference(before: Float[Tensor, "... v"], after: Float[Tensor, "... v"]) -> OutputDifference:
    """Compare the logits of two runs, without and with an ablation."""
    if before.shape != after.shape:
        raise ValueError(f"the outputs must have one shape, got {list(before.shape)} and {list(after.shape)}")
    p, q = (x.detach().float().log_softmax(-1) for x in (before, after))
    divergence = (p.exp() * (p - q)).sum(-1)
    count = min(5, p.shape[-1])

    def likeliest(x: Tensor) -> list[tuple[int, float]]:
        top = x.reshape(-1, x.shape[-1])[-1].exp().topk(count)
        return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))

    return OutputDifference(divergence, likeliest(p), likeliest(q))
