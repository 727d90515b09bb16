"""Interventions: changes of attention outputs and masks while a model runs, which the taps apply."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .call import CROSS
from .generation_passes import CLOSED
from .trace import ModuleDepths
from .watch import install, named_parts, numbers, opened, plan, remove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn


_lock = threading.RLock()
_fastpath_before = True
"""Whether the fast path of nn.MultiheadAttention was enabled before the first of the open blocks of all threads."""


class ModelIntervention:
    """An intervention that changes nothing; the base of those that do.

    It concerns the modules whose id is in `names`, in the thread that opened it.
    """

    tokens: Sequence[int] = ()
    """Tokens that it masks; empty if it changes no mask."""

    def __init__(self, model: nn.Module) -> None:
        self.parts = named_parts(model)
        self.names = {id(part): name or type(model).__name__ for name, part in self.parts}
        self.thread, self.number = threading.get_ident(), next(numbers)
        self._declared_cross = {name: getattr(part, "is_cross_attention", None) for name, part in self.parts}

    def describe(self, name: str) -> str:
        """What is changed in this module, in words for a trace; empty if nothing is."""
        return ""

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        """The output that the module goes on with.

        Heads are dimension `dim`. If there are `count` of them and the dimension is longer, it is [B · heads].
        """
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask and the causal flag that the module goes on with."""
        return mask, is_causal

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        """Refuse what cannot be changed in attention that a module writes out."""
        if not self.is_cross(name, queries != keys):
            self.check_maskless(name, "attention written out in a module")

    def check_maskless(self, name: str, kind: str, lengths_differ: bool = False) -> None:
        """Refuse tokens where no mask can be changed, unless it is cross-attention, whose tokens stay."""
        if self.tokens and not self.is_cross(name, lengths_differ):
            raise ValueError(f"{name} is {kind}, where tokens cannot be masked; ablate its heads instead")

    def check_head_axis(self, name: str, out: Tensor) -> None:
        """Refuse heads of an output that is not [B, heads, T, D]."""
        if out.dim() < 4:
            raise ValueError(
                f"{name} calls attention with an output of shape {list(out.shape)}, whose first dimension is either "
                "the batch or the heads; its heads can be changed in a call of shape [batch, heads, tokens, size] (one "
                "head: x.unsqueeze(1))"
            )

    def is_cross(self, name: str, lengths_differ: bool) -> bool:
        """Whether this layer is cross-attention, by its attribute `is_cross_attention` or else by its name."""
        declared = self._declared_cross.get(name)
        return bool(declared) if declared is not None else lengths_differ or CROSS.search(name.lower()) is not None


@contextmanager
def applied(intervention: ModelIntervention) -> Iterator[None]:
    """Inside the block, in the thread that opened it, the taps apply the intervention."""
    global _fastpath_before
    try:
        install(intervention.number, plan(intervention.parts))
        with _lock:
            if not opened.ablations:
                _fastpath_before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            opened.ablations = (*opened.ablations, intervention)
        yield
    finally:
        with _lock:
            was_open = intervention in opened.ablations
            opened.ablations = tuple(x for x in opened.ablations if x is not intervention)
            if was_open and not opened.ablations:  # the last open block of all threads
                torch.backends.mha.set_fastpath_enabled(_fastpath_before)
        remove(intervention.number)


def without_keys(
    closed: Bool[Tensor, "*#batch #q k"], mask: Tensor | None, is_causal: bool, q: Tensor
) -> Bool[Tensor, "..."] | Float[Tensor, "..."]:
    """The mask without these keys, for queries that have others left; a mask of numbers stays one."""
    queries, keys = q.shape[-2], closed.shape[-1]
    before = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if is_causal:
        before = before.tril()
    open_ = before & ~closed
    if mask is None:
        return torch.where(open_.any(-1, keepdim=True), open_, before)
    if mask.dtype == torch.bool:
        both = mask & open_
        return torch.where(both.any(-1, keepdim=True), both, mask)
    left = ((mask > CLOSED) & open_).any(-1, keepdim=True)
    return mask.masked_fill(~open_ & left, torch.finfo(mask.dtype).min)


@dataclass(frozen=True, slots=True)
class Site:
    """A place that an intervention changes: a head, all heads of a layer, or a token."""

    layer: int | None = None
    """The number of the attention call in the forward pass."""
    head: int | None = None
    token: int | None = None
    module: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOutput:
    """The output of one attention call, and where its heads are."""

    module: str
    tensor: Tensor
    dim: int
    count: int | None

    def arranged(self, x: Tensor) -> Float[Tensor, "b heads t d"]:
        """A tensor of the output's shape with batch and heads first."""
        return by_heads(x, self.dim, self.count)

    @property
    def by_heads(self) -> Float[Tensor, "b heads t d"]:
        return self.arranged(self.tensor.detach())


class OutputRecorder(ModelIntervention):
    """Records the outputs of all attention calls of a forward pass, with their graph if there is one."""

    def __init__(self, model: nn.Module, gradients: bool = False) -> None:
        super().__init__(model)
        self.gradients = gradients
        self.outputs: list[RecordedOutput] = []

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        if self.gradients and not out.requires_grad:
            out = out.detach().requires_grad_()  # no parameter needs a gradient: the graph begins here
        self.outputs.append(RecordedOutput(name, out, dim, count))
        return out.clone()  # the model may change what it gets in place


class RowReplacement(ModelIntervention):
    """One change for each part of a batch that was repeated: in part n, site n."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sequence[Site],
        batch: int,
        outputs: Sequence[Float[Tensor, "b heads t d"] | None],
        modules: Sequence[str],
    ) -> None:
        """`outputs` replace those of each attention call, None for zeros; `modules` made these calls, in order."""
        super().__init__(model)
        self.sites, self.batch, self.replacements = sites, batch, outputs
        self.tokens = [site.token for site in sites if site.token is not None]
        self._calls: dict[tuple[str, int], int] = {}
        for at, module in enumerate(modules):
            self._calls[module, list(modules[:at]).count(module)] = at
        self._count: Counter[str] = Counter()

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        call = self._calls.get((name, self._count[name]))
        self._count[name] += 1
        own = [at for at, site in enumerate(self.sites) if site.layer is not None and site.layer == call]
        if call is None or not own:
            return out
        out, new = out.clone(), self.replacements[call]
        parts = by_heads(out, dim, count)
        for at in own:
            head = self.sites[at].head
            heads = slice(None) if head is None else slice(head, head + 1)
            rows = slice(at * self.batch, (at + 1) * self.batch)
            parts[rows, heads] = 0 if new is None else new[:, heads].to(out.dtype)
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """In part n of the batch, without token n."""
        queries, keys = q.shape[-2], k.shape[-2]
        if not self.tokens or self.is_cross(name, mask is None and not is_causal and 1 < queries != keys):
            return mask, is_causal
        closed = torch.zeros(len(self.sites), keys, dtype=torch.bool, device=q.device)
        for at, token in enumerate(self.tokens):
            closed[at, token] = True
        rows = closed.repeat_interleave(self.batch, dim=0)[:, None, None]
        return without_keys(rows, mask, is_causal, q), False


def by_heads(out: Tensor, dim: int, count: int | None) -> Float[Tensor, "b heads ..."]:
    """A view of an output with batch and heads first."""
    dim %= out.dim()
    if count is not None and out.shape[dim] != count:
        out, dim = out.unflatten(dim, (-1, count)), dim + 1
    return out.movedim(dim, 1)


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
        self._depths = ModuleDepths(self.parts)
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
        heads = sorted({head for layer in self._layers(name) for head in self.heads[layer]})
        parts = [f"heads {', '.join(map(str, heads))}"] if heads else []
        if self.tokens and not self.is_cross(name, False):
            parts.append(f"tokens {', '.join(map(str, self.tokens))}")
        return "; ".join(parts)

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
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
        queries, keys = q.shape[-2], k.shape[-2]
        tokens = [token for token in self.tokens if token < keys]
        if not tokens or self.is_cross(name, mask is None and not is_causal and 1 < queries != keys):
            return mask, is_causal
        self._masked_tokens.update(tokens)
        closed = torch.zeros(keys, dtype=torch.bool, device=q.device)
        closed[tokens] = True
        return without_keys(closed, mask, is_causal, q), False
