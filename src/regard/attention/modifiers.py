"""Score modifiers: what happens to an energy after it is computed and before it is normalized.

    Modified(ScaledDot(), SoftCap(50), Alibi(8))      reads in the order it is applied

A modifier is called with a block of energies and the indices of that block, so that the whole matrix never has to
exist: `batch` is one index tensor per leading dimension, `i` the queries, `j` the keys, all broadcastable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from .block_indices import fits, pick
from .energies import split
from .energy_matrix import EnergyMatrix
from .torch_transforms import traced
from .validation import positive

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .block_indices import Batch
    from .energies import Energy
    from .energy_forms import Form


class Modifier(Protocol):
    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor: ...

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """e_ij + bias_ij, with `bias` broadcastable to `[..., T_q, T_k]` (Shaw 2018; T5's relative positions)."""

    bias: Tensor

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


class Alibi:
    """e_ij − m_h |i + offset − j|, head h's slope m_h = 2^(−8h/H) (Press, Smith & Lewis 2022).

    Heads are the dimension before the queries. `offset` is the position of the first query, for key/value caches.
    """

    def __init__(self, heads: int, *, offset: int = 0) -> None:
        if heads < 1:
            raise ValueError(f"Alibi needs at least one head, got {heads}")
        self.heads, self.offset = heads, offset
        self.slopes = torch.tensor(_slopes(heads), dtype=torch.float32)
        self._elsewhere: dict[torch.device, Tensor] = {}  # a CUDA graph cannot copy from the CPU

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if not batch or batch[-1] != self.heads:
            raise ValueError(
                f"Alibi({self.heads}) needs {self.heads} heads in dimension -3, the leading shape is {list(batch)}"
            )

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        slope = self._on(e.device)[batch[-1]]
        return e - (slope * (i + self.offset - j).abs()).to(e.dtype)

    def _on(self, device: torch.device) -> Tensor:
        if traced():
            return self.slopes.to(device)  # nothing may be remembered while FlexAttention traces this
        if device not in self._elsewhere:
            self._elsewhere[device] = self.slopes.to(device)
        return self._elsewhere[device]

    def __repr__(self) -> str:
        return f"Alibi({self.heads})"


def _slopes(heads: int) -> list[float]:
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    # The paper's rule when H is not a power of two: every other slope of the next power.
    more = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return slopes + more[: heads - power]


@dataclass(frozen=True, slots=True)
class SoftCap:
    """c · tanh(e_ij / c): energies stay within ±c (Bello et al. 2017; Gemma 2)."""

    cap: float

    def __post_init__(self) -> None:
        positive("SoftCap's cap", self.cap)

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        return None

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        return torch.tanh(e / self.cap) * self.cap


class Modified(nn.Module):
    """An energy followed by score modifiers. A module, so that a learned energy's parameters are found."""

    energy: Energy | Callable[[Tensor, Tensor], Tensor]
    modifiers: tuple[Modifier, ...]

    def __init__(self, energy: Energy | Callable[[Tensor, Tensor], Tensor], *modifiers: Modifier) -> None:
        super().__init__()
        if isinstance(energy, type | Bias | Alibi | SoftCap):
            raise TypeError(f"Modified takes an energy first, such as ScaledDot(); got {energy!r}")
        if isinstance(energy, Modified):
            modifiers = (*energy.modifiers, *modifiers)
            energy = energy.energy
        self.energy, self.modifiers = energy, modifiers
        for at, modifier in enumerate(self.modifiers):
            if isinstance(modifier, Bias) and isinstance(modifier.bias, nn.Parameter):
                self.register_parameter(f"bias_{at}", modifier.bias)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Form]:
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
