"""Choosing a backend: the fastest that is exact for the request, and the reasons why not the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from .backends import fused, reference, sdpa

if TYPE_CHECKING:
    from types import ModuleType

    from .request import Request

Backend = Literal["auto", "reference", "sdpa", "flex", "fused"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What would run, why, and what kept the others out. `print` it."""

    backend: str
    why: str
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(map(len, (self.backend, *self.others)))
        lines = [f"→ {self.backend:{width}}  {self.why}"]
        return "\n".join(lines + [f"  {name:{width}}  {why}" for name, why in self.others.items()])


def module(name: str) -> ModuleType:
    """The backend of this name. FlexAttention is imported only when it is looked at: it takes a while."""
    if name == "flex":
        from .backends import flex

        return flex
    return {"reference": reference, "sdpa": sdpa, "fused": fused}[name]


def choose(request: Request, backend: str) -> ModuleType:
    """The module that computes the request; by name exactly that one, or an error that says why not."""
    if backend == "auto":
        return module(_auto(request))
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    chosen = module(backend)
    why_not: str | None = chosen.refusal(request)
    if why_not is not None:
        raise ValueError(f'backend="{backend}" cannot do this: {why_not}. backend="auto" would use "{_auto(request)}"')
    return chosen


def _auto(request: Request) -> str:
    if sdpa.refusal(request) is None and not _prefers_flex(request):
        return "sdpa"
    if request.energies.a.device.type == "cuda" and module("flex").refusal(request) is None:
        return "flex"
    return "reference" if _is_small(request) else "fused"


def _is_small(request: Request) -> bool:
    """Whether an additive energy's [T_q, T_k, D] tensor is small enough that just building it is fastest.

    Measured, not derived: below these sizes our kernel is slower for its set-up, and with one or two queries the
    exponentials it takes once per key are not shared by enough queries to pay.
    """
    energies = request.energies
    if energies.form.kernel != "tanh":
        return False
    size = energies.count * energies.queries * energies.keys * energies.a.shape[-1]
    if energies.a.device.type == "cuda":
        return size <= 1 << 24 and energies.queries > 8  # a few queries have a kernel of their own
    return size <= 1 << 19 or (energies.queries <= 2 and size <= 1 << 24)


def _prefers_flex(request: Request) -> bool:
    """On a GPU a structured mask that is not plainly causal skips blocks there, where SDPA would read a dense mask.

    Finding the blocks takes many launches at every call, which a short sequence does not pay back.
    """
    energies = request.energies
    if energies.queries * energies.keys < 1 << 20:
        return False
    if energies.a.device.type != "cuda" or (energies.mask is None and not energies.modifiers):
        return False
    if energies.mask is not None and energies.mask.is_causal and not energies.modifiers:
        return False
    return module("flex").refusal(request) is None


def plan(request: Request, backend: str) -> Plan:
    name = _auto(request) if backend == "auto" else backend
    choose(request, backend)
    others = {}
    for other in ("sdpa", "flex", "fused", "reference"):
        if other != name:
            why_not = module(other).refusal(request)
            others[other] = f"cannot: {why_not}" if why_not is not None else _slower(other, request)
    return Plan(name, _why(name, request), others)


def _why(name: str, request: Request) -> str:
    where = request.energies.a.device.type
    if name == "sdpa":
        mask = request.energies.mask
        dense = f"the mask as a dense tensor of {request.energies.queries} × {request.energies.keys}"
        kind = "no mask" if mask is None else "its causal flag" if mask.is_causal else dense
        return f"softmax over dot products: PyTorch's own kernel on {where}, with {kind}"
    if name == "flex":
        return f"softmax over modified dot products: FlexAttention on {where}, skipping masked blocks"
    if name == "fused":
        return fused.how(request)
    small = "it is small: " if _is_small(request) else ""
    return f"{small}the formula as written, with the whole [T_q, T_k] matrix in memory"


def _slower(name: str, request: Request) -> str:
    if name == "reference":
        return "can, with the whole [T_q, T_k] matrix in memory"
    if name == "fused" and request.energies.mask is not None:
        return "can, without a dense mask or matrix"
    if name == "flex" and request.energies.a.device.type == "cpu":
        return "can, but uncompiled on CPU it holds the whole matrix"
    return "can, but no faster here"
