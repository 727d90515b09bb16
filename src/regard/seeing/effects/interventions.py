"""Interventions: changes of attention outputs and masks while a model runs, which the taps apply."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from ..capture import call_routing
from ..capture.attention_call import CROSS
from ..capture.call_inputs_and_output import CLOSED
from ..capture.module_depth import named_parts
from ..capture.taps import patching

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxtyping import Bool, Float
    from torch import Tensor, nn

    from ..capture.module_depth import Parts

_lock = threading.RLock()
_fastpath_before = True
"""Whether the fast path of nn.MultiheadAttention was enabled before the first of the open blocks of all threads."""


class Intervention(Protocol):
    """What the taps ask of each open intervention, for modules whose id is in `names`, in the thread it names."""

    parts: Parts
    names: dict[int, str]
    thread: int
    tokens: Sequence[int]
    """Tokens that it masks; empty if it changes no mask."""

    def describe(self, name: str) -> str:
        """What is changed in this module, in words for a trace; empty if nothing is."""
        ...

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        """The output that the module goes on with.

        Heads are dimension `dim`. If there are `count` of them and the dimension is longer, it is [B · heads].
        """
        ...

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        """The mask and the causal flag that the module goes on with."""
        ...

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        """Refuse what cannot be changed in attention that a module writes out."""
        ...

    def check_maskless(self, name: str, kind: str, lengths_differ: bool = False) -> None:
        """Refuse tokens where no mask can be changed, unless it is cross-attention, whose tokens stay."""
        ...

    def check_head_axis(self, name: str, out: Tensor) -> None:
        """Refuse heads of an output that is not [B, heads, T, D]."""
        ...


class ModelIntervention:
    """An intervention that changes nothing; the base of those that do."""

    tokens: Sequence[int] = ()

    def __init__(self, model: nn.Module) -> None:
        self.parts = named_parts(model)
        self.names = {id(part): name or type(model).__name__ for name, part in self.parts}
        self.thread = threading.get_ident()
        self._declared_cross = {name: getattr(part, "is_cross_attention", None) for name, part in self.parts}

    def describe(self, name: str) -> str:
        return ""

    def output(self, name: str, out: Tensor, dim: int, count: int | None = None) -> Tensor:
        return out

    def mask(self, name: str, mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> tuple[Tensor | None, bool]:
        return mask, is_causal

    def check_written_out(self, name: str, queries: int, keys: int, has_heads: bool) -> None:
        if not self.is_cross(name, queries != keys):
            self.check_maskless(name, "attention written out in a module")

    def check_maskless(self, name: str, kind: str, lengths_differ: bool = False) -> None:
        if self.tokens and not self.is_cross(name, lengths_differ):
            raise ValueError(f"{name} is {kind}, where tokens cannot be masked; ablate its heads instead")

    def check_head_axis(self, name: str, out: Tensor) -> None:
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
def applied(intervention: Intervention) -> Iterator[None]:
    """Inside the block, in the thread that opened it, the taps apply the intervention."""
    global _fastpath_before
    patching.install(patching.plan(intervention.parts))
    with _lock:
        if not call_routing.ablations:
            _fastpath_before = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        call_routing.set_ablations((*call_routing.ablations, intervention))
    try:
        yield
    finally:
        with _lock:
            call_routing.set_ablations(tuple(x for x in call_routing.ablations if x is not intervention))
            if not call_routing.ablations:  # the last open block of all threads
                torch.backends.mha.set_fastpath_enabled(_fastpath_before)
        patching.remove()


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
