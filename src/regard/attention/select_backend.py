"""Selects a backend: the fastest that is exact for the request. `Plan` has the reasons against the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from .backends import fused, reference, sdpa
from .torch_transforms import no_kernel

if TYPE_CHECKING:
    from types import ModuleType

    from .request import Request

Backend = Literal["auto", "reference", "sdpa", "flex", "fused"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The backend that would run, the reason, and the reason against each of the others. `print` it."""

    backend: str
    why: str
    others: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(map(len, (self.backend, *self.others)))
        lines = [f"→ {self.backend:{width}}  {self.why}"]
        return "\n".join(lines + [f"  {name:{width}}  {why}" for name, why in self.others.items()])


def _module(name: str) -> ModuleType:
    """The backend of this name. FlexAttention is imported when first needed, because its import is slow."""
    if name == "flex":
        from .backends import flex

        return flex
    return {"reference": reference, "sdpa": sdpa, "fused": fused}[name]


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def select(request: Request, backend: str) -> ModuleType:
    """The module that computes the request. A named one is returned or refused with the reason."""
    if backend == "auto":
        return _fastest(request)
    if backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    module = _module(backend)
    reason: str | None = module.refusal(request)
    if reason is not None:
        auto = _name(_fastest(request))
        raise ValueError(f'backend="{backend}" cannot do this: {reason}. backend="auto" would use "{auto}"')
    return module


def _fastest(request: Request) -> ModuleType:
    if sdpa.refusal(request) is None and not _prefers_flex(request):
        return sdpa
    if request.energies.a.device.type == "cuda" and _module("flex").refusal(request) is None:
        return _module("flex")
    return reference if _is_small(request) or no_kernel() is not None else fused


def _is_small(request: Request) -> bool:
    """Whether an additive energy's [T_q, T_k, D] tensor is small enough that building it is fastest.

    The limits are measured. Below them the set-up of our kernel takes longer than it saves, and with one or two
    queries the exponentials that it computes once per key are shared by too few queries.
    """
    energies = request.energies
    if energies.form.kernel != "tanh":
        return False
    size = energies.count * energies.queries * energies.keys * energies.a.shape[-1]
    if energies.a.device.type == "cuda":
        return size <= 1 << 26
    return size <= 1 << 19 or (energies.queries <= 2 and size <= 1 << 24)


def _prefers_flex(request: Request) -> bool:
    """On a GPU, FlexAttention skips the blocks that a structured mask closes; SDPA would read a dense mask.

    Finding these blocks takes many kernel launches per call, too many for a short sequence.
    """
    energies = request.energies
    if energies.queries * energies.keys < 1 << 20:
        return False
    if energies.a.device.type != "cuda" or (energies.mask is None and not energies.modifiers):
        return False
    if energies.mask is not None and energies.mask.is_causal and not energies.modifiers:
        return False
    return _module("flex").refusal(request) is None


def make_plan(request: Request, backend: str) -> Plan:
    name = _name(select(request, backend))
    fastest = _name(_fastest(request))
    others = {}
    for other in ("sdpa", "flex", "fused", "reference"):
        if other != name:
            reason = _module(other).refusal(request)
            if reason is not None:
                others[other] = f"cannot: {reason}"
            else:
                others[other] = 'can, and is what "auto" selects' if other == fastest else _slower(other, request)
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
