"""Score modifiers: functions of an energy and its indices, applied before the normalizer.

    Modified(ScaledDot(), SoftCap(50), Alibi(8))      is applied from left to right

A modifier is called with a block of energies and the indices of that block, so the whole matrix never has to exist:
`batch` is one index tensor per leading dimension, `i` the queries, `j` the keys, all broadcastable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..block_indices import at_each_index, batch_and_head, check_batch_and_head, check_device, fits, pick
from ..part import Part, positive, takes
from .lazy_energy_matrix import EnergyMatrix, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..block_indices import Batch
    from .energies import Energy
    from .energy_forms import EnergyForm


class Modifier(Part):
    """A function of energies and their indices. A subclass gives `__call__`."""

    additive: bool = False
    """Whether it adds something that does not depend on the energy."""

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        """Raise ValueError where it cannot be applied to energies of this shape."""

    def to_device(self, device: torch.device) -> Modifier:
        """The same with tensors of its own making on this device. Those it was given have to be there already."""
        return self

    @property
    def added(self) -> Tensor | None:
        """The tensor that it adds, broadcastable to [..., T_q, T_k]; None for any other modifier."""
        return None

    def whole(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        """The same where the indices are those of the whole matrix."""
        return self(e, batch, i, j)

    def continues(self, first: Modifier, queries: int) -> bool:
        """Whether this is `first` again in a later step of a generation, `queries` positions on."""
        return False

    def kernel_arguments(self) -> dict[str, Any]:
        """What a kernel that knows it is given: "cap", or "slopes" and "offset"."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Bias(Modifier):
    """e_ij + bias_ij, with `bias` broadcastable to `[..., T_q, T_k]` (Shaw 2018; T5's relative positions)."""

    bias: Tensor
    trace_key = "bias"
    opaque = False
    additive = True

    def __post_init__(self) -> None:
        if not isinstance(self.bias, torch.Tensor) or not self.bias.is_floating_point():
            raise TypeError(
                f"Bias takes a tensor of floats, got {getattr(self.bias, 'dtype', type(self.bias).__name__)}"
            )

    def __repr__(self) -> str:
        return f"Bias({list(self.bias.shape)})"

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        full = (*batch, queries, keys)
        shape = tuple(self.bias.shape)
        if self.bias.dim() < 2 or not fits(shape, full):
            raise ValueError(f"Bias of shape {list(shape)} does not broadcast to energies {list(full)}")

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return e + pick(self.bias, batch, i, j).to(e.dtype)

    @property
    def added(self) -> Tensor | None:
        return self.bias

    def whole(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        check_device("the bias", self.bias, e.device)
        return e + self.bias.to(e.dtype)  # broadcasting is cheaper than indexing

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Bias:
        return Bias(function(self.bias))  # torch.compile cannot trace a copy

    def continues(self, first: Modifier, queries: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SoftCap(Modifier):
    """c · tanh(e_ij / c): energies stay within ±c (Bello et al. 2017; Gemma 2)."""

    cap: float
    kernel = trace_key = "softcap"
    opaque = False

    def __post_init__(self) -> None:
        positive("SoftCap's cap", self.cap)
        if self.cap == math.inf:
            raise ValueError("SoftCap's cap is a finite number, got inf; without a cap leave SoftCap out")

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(e / self.cap) * self.cap

    def continues(self, first: Modifier, queries: int) -> bool:
        return self == first

    def kernel_arguments(self) -> dict[str, Any]:
        return {"cap": self.cap}


@dataclass(frozen=True, slots=True, eq=False)
class FunctionModifier(Modifier):
    """Any function of (e, batch, i, j)."""

    function: Callable[[Tensor, Batch, Tensor, Tensor], Tensor]

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return self.function(e, batch, i, j)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMod(Modifier):
    """FlexAttention's `score_mod`, a function of the five scalars (score, b, h, q_idx, kv_idx).

    It is called as FlexAttention calls it, under `torch.vmap`. With inputs [B, T, D] h is 0, and with [T, D] b is, too.
    """

    function: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        check_batch_and_head("score_mod", batch)

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        if not e.numel():
            return e
        score = at_each_index(self._scalar, e, *batch_and_head(batch, i), i, j)
        return score.contiguous()  # a score that does not depend on all indices is expanded, and cannot be written to

    def _scalar(self, e: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = torch.as_tensor(self.function(e, b, h, i, j), device=e.device)
        if score.dim():
            raise ValueError(
                f"score_mod is called with five scalars and returns one number; it returned {list(score.shape)}"
            )
        return score.to(e.dtype)


def _modifier(x: Modifier | Callable[..., Tensor]) -> Modifier:
    if isinstance(x, Modifier):
        return x
    if isinstance(x, type) or not callable(x):
        raise TypeError(f"Modified takes modifiers such as SoftCap(50.0), or functions; got {x!r}")
    if takes(x, 4):
        return FunctionModifier(x)
    if takes(x, 5):
        return ScoreMod(x)
    raise TypeError(
        "Modified takes functions of (score, b, h, q_idx, kv_idx), FlexAttention's score_mod, or of (e, batch, i, j); "
        f"{x!r} takes neither"
    )


class Modified(nn.Module):
    """An energy followed by score modifiers, applied in order.

    A modifier is a `Modifier`, FlexAttention's `score_mod`, a function of the scalars (score, b, h, q_idx, kv_idx), or
    a function of blocks (e, batch, i, j).

    A module, so that the parameters of a learned energy and of learned modifiers are found; other tensors of the
    modifiers follow `.to()` and are not saved.
    """

    energy: Energy | Callable[[Tensor, Tensor], Tensor]

    def __init__(
        self,
        energy: Energy | Callable[[Tensor, Tensor], Tensor],
        *modifiers: Modifier | Callable[..., Tensor],
    ) -> None:
        super().__init__()
        if isinstance(energy, type | Modifier):
            raise TypeError(f"Modified takes an energy first, such as ScaledDot(); got {energy!r}")
        own = tuple(_modifier(x) for x in modifiers)
        joined = isinstance(energy, Modified)
        inner: tuple[Modifier, ...] = getattr(energy, "modifiers", ())
        self._parts: tuple[Modifier, ...] = (*inner, *own) if joined else own
        """Those whose tensors are registered here. Another energy that has modifiers registers them itself."""
        self._names: list[list[str]] = []  # per modifier, the names its tensors are registered under
        self.energy = energy.energy if isinstance(energy, Modified) else energy
        for at, modifier in enumerate(self._parts, start=0 if joined else len(inner)):
            names = []
            function = getattr(modifier, "function", None)
            if isinstance(function, nn.Module):
                self.add_module(f"modifier_{at}", function)
            for n, tensor in enumerate(modifier.tensors()):
                names.append(f"bias_{at}{f'_{n}' if n else ''}")
                if isinstance(tensor, nn.Parameter):
                    self.register_parameter(names[-1], tensor)
                else:
                    self.register_buffer(names[-1], tensor, persistent=False)
            self._names.append(names)

    @property
    def modifiers(self) -> tuple[Modifier, ...]:
        """The modifiers with the tensors that are registered now: a module's parameters can be replaced."""
        inner: tuple[Modifier, ...] = getattr(self.energy, "modifiers", ())
        return (*inner, *map(self._with_registered, self._parts, self._names))

    def _with_registered(self, modifier: Modifier, names: list[str]) -> Modifier:
        tensors = [getattr(self, name) for name in names]
        if all(x is y for x, y in zip(tensors, modifier.tensors(), strict=True)):
            return modifier
        registered = iter(tensors)
        return modifier.map_tensors(lambda _: next(registered))

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return split(self.energy, q, k)

    def check(self, width_q: int, width_k: int) -> None:
        check = getattr(self.energy, "check", None)
        if check is not None:
            check(width_q, width_k)

    def extra_repr(self) -> str:
        named = [] if isinstance(self.energy, nn.Module) else [repr(self.energy)]
        return ", ".join(named + [repr(modifier) for modifier in self.modifiers])

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return EnergyMatrix.of(q, k, self).whole()
