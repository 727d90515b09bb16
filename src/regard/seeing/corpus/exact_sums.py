"""Sums that do not depend on the order of their terms, so that parts of a corpus merge to the same figures.

    x ≈ (a + b · 2⁻⁴⁰) · 2⁻²⁰,  a = ⌊x · 2²⁰⌋,  0 ≤ b < 2⁴⁰

Each term is rounded once, down to a multiple of 2⁻⁶⁰, and a and b are added as 64-bit integers. Integer addition is
associative, floating-point addition is not. A sum is exact up to |Σ x| = 2⁴², about 4·10¹².
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

COARSE, FINE = 20, 40
"""Binary digits after the point in `a`, and further ones in `b`."""
LIMIT = 2**62
SEPARATOR = "\n"
"""Between the parts of a name in `state`; no module's name holds it."""


class ExactSums:
    """Sums and counts of tensors under names; a name is a tuple of strings."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Int[Tensor, "3 ..."]] = {}  # a, b, and the number of terms without a value
        self._counts: dict[tuple[str, ...], int] = {}

    def __contains__(self, name: tuple[str, ...]) -> bool:
        return name in self._sums

    @property
    def names(self) -> list[tuple[str, ...]]:
        return list(self._sums)

    def add(self, name: tuple[str, ...], values: Float[Tensor, "..."]) -> None:
        """Add one term. NaN and ∞ make that element of the sum NaN."""
        x = values.detach().to("cpu", torch.float64)
        finite = x.isfinite()
        scaled = torch.where(finite, x, 0) * 2.0**COARSE
        coarse = scaled.floor()
        if bool((coarse.abs() >= LIMIT).any()):
            raise OverflowError(f"{' '.join(name)}: a value of {float(x.abs().max()):.3g} is too large to be summed")
        fine = ((scaled - coarse) * 2.0**FINE).floor()
        self._add(name, torch.stack([coarse.long(), fine.long(), (~finite).long()]), 1)

    def _add(self, name: tuple[str, ...], terms: Int[Tensor, "3 ..."], count: int) -> None:
        former = self._sums.get(name)
        if former is not None and former.shape != terms.shape:
            raise ValueError(
                f"{' '.join(name)} has the shape {tuple(terms.shape[1:])}, and {tuple(former.shape[1:])} before"
            )
        total = terms if former is None else former + terms
        carry = total[1] >> FINE
        total = torch.stack([total[0] + carry, total[1] - (carry << FINE), total[2]])
        if bool((total[0].abs() >= LIMIT).any()):
            raise OverflowError(f"{' '.join(name)}: the sum is too large")
        self._sums[name] = total
        self._counts[name] = self._counts.get(name, 0) + count

    def merge(self, other: ExactSums) -> None:
        """Add all sums and counts of another part."""
        for name, terms in other._sums.items():
            self._add(name, terms, other._counts[name])

    def count(self, name: tuple[str, ...]) -> int:
        """The number of terms."""
        return self._counts.get(name, 0)

    def sum(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        """The sum, in float64."""
        coarse, fine, missing = self._sums[name]
        total: Tensor = coarse.double() * 2.0**-COARSE + fine.double() * 2.0 ** -(COARSE + FINE)
        return total.masked_fill(missing > 0, torch.nan)

    def mean(self, name: tuple[str, ...]) -> Float[Tensor, "..."]:
        return self.sum(name) / self._counts[name]

    def state(self) -> dict[str, Tensor]:
        """Tensors to save, by name."""
        state = {SEPARATOR.join(("sum", *name)): terms.contiguous() for name, terms in self._sums.items()}
        counts = {SEPARATOR.join(("count", *name)): torch.tensor(count) for name, count in self._counts.items()}
        return state | counts

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> ExactSums:
        sums = cls()
        for key, terms in state.items():
            kind, *name = key.split(SEPARATOR)
            if kind == "sum":
                count = int(state[SEPARATOR.join(("count", *name))])
                sums._add(tuple(name), terms, count)
        return sums
