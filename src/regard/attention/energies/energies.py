"""Energies e_ij = energy(q_i, k_j): how well query i matches key j.

These have nothing to learn; `learned_energies.py` has those that do. An energy called on its own gives the whole
matrix: `ScaledDot()(q, k)` is `[..., T_q, T_k]`. A plain function of (q, k) is an energy too, as long as entry
(i, j) depends on q_i and k_j alone: that is what lets every backend compute it a block at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..part import positive
from ..torch_transforms import readable
from .energy_forms import DistanceForm, DotForm, EnergyForm, EqualForm, wide

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Energy:
    """An energy with nothing to learn. Subclasses give `split`; calling it is then the formula."""

    matches_labels: bool = False
    """Whether it only asks if query and key are equal, so that `lookup` can take labels of any kind."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        """Project queries and keys, and name the form that joins them: energy(q, k) = form(a, b)."""
        raise NotImplementedError

    def check(self, width_q: int, width_k: int) -> None:
        """Raise ValueError where queries and keys of these widths cannot be compared."""
        if width_q != width_k:
            raise ValueError(
                f"{type(self).__name__} compares queries and keys of one width: queries are {width_q} wide, "
                f"keys {width_k}. Use General({width_q}, {width_k}) or Additive({width_q}, {width_k}, hidden), "
                "which learn to compare different widths."
            )

    def __call__(self, q: Float[Tensor, "*batch q d"], k: Float[Tensor, "*batch k d"]) -> Float[Tensor, "*batch q k"]:
        a, b, form = self.split(q, k)
        return form(a, b)


@dataclass(frozen=True, slots=True)
class Dot(Energy):
    """e_ij = q_i·k_j (Luong, Pham & Manning 2015, "dot")."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DotForm()


@dataclass(frozen=True, slots=True)
class ScaledDot(Energy):
    """e_ij = q_i·k_j / √d_k (Vaswani et al. 2017, eq. 1); `scale` replaces 1/√d_k."""

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not isinstance(self.scale, int | float):
            raise TypeError(
                f"ScaledDot's scale is a number, got {type(self.scale).__name__}; to learn one, scale q by it"
            )

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DotForm(max(1, q.shape[-1]) ** -0.5 if self.scale is None else self.scale)


@dataclass(frozen=True, slots=True)
class Cosine(Energy):
    """e_ij = q_i·k_j / (|q_i| |k_j|) (Graves, Wayne & Danihelka 2014, eq. 6). A zero vector matches nothing: 0."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return _unit(q), _unit(k), DotForm()


@dataclass(frozen=True, slots=True)
class Exact(Energy):
    """e_ij = 1 where q_i = k_j in every component, else 0: the dictionary. Use with `normalize=Proportional()`."""

    matches_labels = True

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, EqualForm()


@dataclass(frozen=True, slots=True)
class InverseDistance(Energy):
    """e_ij = 1/|q_i − k_j| (Shepard 1968). Use with `normalize=Proportional()`: an equal key then gives its value."""

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        return q, k, DistanceForm(inverse=True)


@dataclass(frozen=True, slots=True)
class Gaussian(Energy):
    """e_ij = −|q_i − k_j|² / 2σ²; with `Softmax` this is kernel regression (Nadaraya 1964, Watson 1964)."""

    sigma: float = 1.0

    def __post_init__(self) -> None:
        positive("Gaussian's sigma", self.sigma)

    def split(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, EnergyForm]:
        # Scaling the inputs instead of the result keeps one form for every σ.
        return wide(q) / self.sigma, wide(k) / self.sigma, DistanceForm()


def _unit(x: Tensor) -> Tensor:
    """x / |x|, at any magnitude; a zero vector stays zero, with a gradient that is finite."""
    x = wide(x)
    if not x.shape[-1]:
        return x
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    x = x / largest.where(largest > 0, 1)
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.where(length > 0, 1)


def check_pairwise(form: EnergyForm, a: Float[Tensor, "n q d"], b: Float[Tensor, "n k d"]) -> None:
    """Refuse a function whose energy of a query and a key depends on where in a block they stand."""
    if not form.opaque or not readable(a) or 0 in (*a.shape, *b.shape) or a.shape[1] < 2:
        return
    a, b = wide(a[:1, :2]), wide(b[:1, :16])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        second = form(a, b)[..., 1, :]
        alone, again = (form(a[:, 1:], b)[..., 0, :] for _ in range(2))
    if not torch.isclose(alone, again, equal_nan=True).all():
        return  # it draws random numbers, so a few energies prove nothing
    # Rounding moves energies by far less than a thousandth of the largest; a position moves them by more.
    rounding = 1e-3 * float(second.nan_to_num(0, 0, 0).abs().amax())
    if not torch.isclose(second, alone, rtol=0, atol=rounding, equal_nan=True).all():
        raise ValueError(
            "this energy gives one query and key different energies in different blocks; it must depend on q_i and k_j "
            "alone. For positions use Rotary(energy), Modified(energy, Bias(tensor)) or Modified(energy, Alibi(heads))"
        )
