"""Rotary positions: pairs of components of queries and keys are rotated by angles that grow with the position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from ..energies.energies import ScaledDot
from ..energies.lazy_energy_matrix import EnergyMatrix, split
from .position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..energies.energies import Energy
    from ..energies.energy_forms import EnergyForm
    from ..energies.modifiers import Modifier

    Layout = Literal["half", "interleaved"]

_SCALED_DOT = ScaledDot()
BASE = 10_000.0


def geometric_rates(planes: int, base: float, device: torch.device | None = None) -> Float[Tensor, " planes"]:
    """base^(−i/planes) for plane i, in float64 where the device has it."""
    kind = torch.float32 if device is not None and device.type == "mps" else torch.float64
    return torch.exp(torch.arange(planes, device=device, dtype=kind) * (-math.log(base) / planes))


def angles(positions: Float[Tensor, "*batch t"], rates: Float[Tensor, " planes"]) -> Float[Tensor, "*batch t planes"]:
    """p · rate, in the precision of the rates: in float32 an angle at position 100,000 would be off by 0.004."""
    return positions[..., None].to(rates.dtype) * rates


def mean_cosine(distances: Int[Tensor, " n"], rates: Float[Tensor, " planes"]) -> Float[Tensor, "1 n"]:
    """The cosine of the angle between vectors of positions this far apart, as a curve for the picture."""
    return angles(distances, rates).cos().mean(-1)[None]


def rotate(
    x: Float[Tensor, "*batch t d"], angle: Float[Tensor, "*batch t planes"], layout: Layout = "half"
) -> Float[Tensor, "*batch t d"]:
    """Plane i of x turned by angle i; components beyond the planes stay as they are.

    The planes of "half" are (x_i, x_{i + planes}) (GPT-NeoX, Llama), those of "interleaved" (x_{2i}, x_{2i+1}) (GPT-J).
    """
    planes = angle.shape[-1]
    kind = torch.promote_types(x.dtype, torch.float32)  # rounded once, at the end
    cos, sin = angle.cos().to(kind), angle.sin().to(kind)
    turned = x[..., : 2 * planes].to(kind)
    if layout == "half":
        left, right = turned.chunk(2, dim=-1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
    else:
        left, right = turned.unflatten(-1, (planes, 2)).unbind(-1)
        turned = torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)
    turned = turned.to(x.dtype)
    return turned if x.shape[-1] == 2 * planes else torch.cat([turned, x[..., 2 * planes :]], dim=-1)


class Rotary(nn.Module, Position):
    """energy(R_i q_i, R_j k_j): plane n of a vector at position p is turned by p · base^(−2n/d) (Su et al. 2021).

    With a dot product the energy depends on the positions through j − i alone. `Weights` keeps the rotated queries and
    keys, and every backend that computes the inner energy computes this one.

    - `width`: how many of the first components are rotated (all; GPT-NeoX rotates a quarter).
    - `layout`: which components form a plane, see `rotate`.
    - `rates`: the angle per position of each plane, instead of base^(−2n/d): a Hugging Face model's `inv_freq`.
    - `scaling`: "linear" divides positions by `factor` (Chen et al. 2023); "ntk" multiplies the base by
      factor^(d/(d−2)), which stretches slow planes and keeps fast ones (bloc97 2023).
    - `offset`: the position of the first query, for key/value caches. The first key has position 0.
    - `positions` [T] or [B, T] of the queries, and of the keys unless `key_positions` gives theirs. The dimensions
      before T belong to the first leading dimensions of q and k.
    """

    positions: Tensor | None
    key_positions: Tensor | None

    def __init__(
        self,
        energy: Energy | Callable[[Tensor, Tensor], Tensor] = _SCALED_DOT,
        *,
        base: float = BASE,
        width: int | None = None,
        layout: Layout = "half",
        rates: Float[Tensor, " planes"] | None = None,
        scaling: Literal["linear", "ntk"] | None = None,
        factor: float = 1.0,
        offset: int = 0,
        positions: Int[Tensor, "*batch q"] | None = None,
        key_positions: Int[Tensor, "*batch k"] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(energy, type) or not callable(energy):
            raise TypeError(f"Rotary takes an energy first, such as ScaledDot(); got {energy!r}")
        if layout not in ("half", "interleaved"):
            raise ValueError(f'Rotary has layout {layout!r}; expected "half" or "interleaved"')
        if scaling not in (None, "linear", "ntk"):
            raise ValueError(f'Rotary has scaling {scaling!r}; expected "linear", "ntk" or None')
        if not base > 0 or not factor > 0:
            raise ValueError(f"Rotary needs base and factor > 0, got {base} and {factor}")
        if width is not None and (width < 2 or width % 2):
            raise ValueError(f"Rotary rotates pairs of components: width is even and at least 2, got {width}")
        if rates is not None and (width is not None or scaling is not None):
            raise ValueError("Rotary's rates decide its width and scaling; give no width and no scaling beside them")
        if positions is not None and offset:  # in this order: an offset may be a symbol under torch.export
            raise ValueError("Rotary has an offset and positions; add the offset to the positions")
        self.energy, self.base, self.width, self.layout = energy, base, width, layout
        self.rates, self.scaling, self.factor, self.offset = rates, scaling, factor, offset
        # Buffers follow `.to(device)`. The rates do not: `.to(torch.bfloat16)` would round them, and so the angles.
        self.register_buffer("positions", positions, persistent=False)
        self.register_buffer("key_positions", positions if key_positions is None else key_positions, persistent=False)

    @property
    def modifiers(self) -> tuple[Modifier, ...]:
        """Those of the inner energy."""
        return getattr(self.energy, "modifiers", ())

    def check(self, width_q: int, width_k: int) -> None:
        rotated = self.rotated(width_q)
        if rotated % 2 or rotated > min(width_q, width_k) or (self.rates is None and rotated != self.rotated(width_k)):
            raise ValueError(
                f"Rotary rotates an even number of components that queries and keys have; it is to rotate {rotated}, "
                f"queries are {width_q} wide and keys {width_k}. Choose them with width=…"
            )
        check = getattr(self.energy, "check", None)
        if check is not None:
            check(width_q, width_k)

    def rotated(self, width: int) -> int:
        """How many components of a vector this wide are rotated."""
        if self.rates is not None:
            return 2 * self.rates.shape[-1]
        return width if self.width is None else self.width

    def angle_rates(self, width: int, device: torch.device | None = None) -> Float[Tensor, " planes"]:
        """The angle per position of each plane, for vectors this wide."""
        if self.rates is not None:
            return self.rates.to(device).to(torch.promote_types(self.rates.dtype, torch.float32))
        rotated, base = self.rotated(width), self.base
        if self.scaling == "ntk":
            base *= self.factor ** (rotated / max(rotated - 2, 1))
        rates = geometric_rates(rotated // 2, base, device)
        return rates / self.factor if self.scaling == "linear" else rates

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        q = self._rotate(q, self.positions, "queries", self.offset)
        return split(self.energy, q, self._rotate(k, self.key_positions, "keys", 0))

    def _rotate(self, x: Tensor, positions: Tensor | None, side: str, first: int) -> Tensor:
        length = x.shape[-2]
        if positions is None:
            positions = torch.arange(first, first + length, device=x.device)
        lead = positions.dim() - 1
        fits = lead <= x.dim() - 2 and all(n in (1, m) for n, m in zip(positions.shape[:-1], x.shape, strict=False))
        if lead < 0 or positions.shape[-1] != length or not fits:
            raise ValueError(
                f"Rotary has positions of shape {list(positions.shape)} for {side} of shape {list(x.shape)}; expected "
                f"[{length}], or [B, {length}] with the first dimension of the {side}"
            )
        angle = angles(positions.to(x.device), self.angle_rates(x.shape[-1], x.device))
        # [B, T, planes] → [B, 1, T, planes] beside [B, heads, T, d]
        angle = angle.reshape(*angle.shape[:lead], *[1] * (x.dim() - 2 - lead), *angle.shape[lead:])
        return rotate(x, angle, self.layout)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return EnergyMatrix.of(q, k, self).whole()

    def matrix(self, count: int) -> Float[Tensor, "count planes"]:
        """The cosine of each plane's angle at the first positions, of heads 64 wide where no width is given."""
        return angles(torch.arange(count), self.angle_rates(_PICTURE_WIDTH).cpu()).cos()

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "1 n"]:
        """The mean cosine over planes: what remains of the dot product of two equal vectors this far apart."""
        return mean_cosine(distances, self.angle_rates(_PICTURE_WIDTH).cpu())

    def extra_repr(self) -> str:
        named = [] if isinstance(self.energy, nn.Module) else [repr(self.energy)]
        given = {"base": BASE, "width": None, "layout": "half", "scaling": None, "factor": 1.0, "offset": 0}
        named += [f"{name}={getattr(self, name)!r}" for name, usual in given.items() if getattr(self, name) != usual]
        tensors = {"rates": self.rates, "positions": self.positions, "key_positions": self.key_positions}
        return ", ".join(named + [f"{name}={list(x.shape)}" for name, x in tensors.items() if x is not None])


_PICTURE_WIDTH = 64
