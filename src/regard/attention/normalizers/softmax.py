"""Softmax, the usual normalizer, with an optional sink."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..block_indices import brief, check_device, fits
from ..part import positive
from .normalizer import RowState, ShiftInvariant, empty_rows, largest, mark_empty

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from ..block_indices import Index
    from .normalizer import Normalizer


@dataclass(frozen=True, slots=True, eq=False)
class Softmax(ShiftInvariant):
    """w_ij = exp(e_ij / T) / Σ_j exp(e_ij / T). State: log Σ_j exp(e_ij / T), +∞ for an empty row.

    A `sink` is the energy s of one more key, which takes its share of every row and has the value 0:
    w_ij = exp(e_ij / T) / (exp(s / T) + Σ_j exp(e_ij / T)). It is a number (0 gives "softmax1", Miller 2023) or a
    tensor that broadcasts to the leading dimensions: [heads] has one per head (gpt-oss; Agarwal et al. 2025). A learned
    one gets its gradient: make `Softmax(sink=self.sink)` where it is used.
    """

    temperature: float = 1.0
    sink: float | Tensor | None = None
    kernel = "softmax"
    opaque = False

    def __post_init__(self) -> None:
        positive("Softmax's temperature", self.temperature, "; Hard() is the limit 0")
        if isinstance(self.sink, torch.Tensor):
            if not self.sink.is_floating_point():
                raise TypeError(f"Softmax's sink is the energy of a key, a float, got a tensor of {self.sink.dtype}")
        elif self.sink is not None and not isinstance(self.sink, int | float):
            raise TypeError(
                "Softmax's sink is a number or a tensor that broadcasts to the leading dimensions, such as [heads]; "
                f"got {type(self.sink).__name__}"
            )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Softmax)
        same = self.sink is other.sink  # tensors by identity: their numbers may be on a GPU
        if not isinstance(self.sink, torch.Tensor) and not isinstance(other.sink, torch.Tensor):
            same = self.sink == other.sink
        return same and self.temperature == other.temperature

    def __hash__(self) -> int:
        return hash((self.temperature, self.sink))

    def __repr__(self) -> str:
        sink = brief(self.sink) if isinstance(self.sink, torch.Tensor) else self.sink
        return f"Softmax(temperature={self.temperature}{'' if sink is None else f', sink={sink}'})"

    def settings(self) -> dict[str, Any]:
        # Most have no sink, and are described as before there was one.
        return {name: x for name, x in ShiftInvariant.settings(self).items() if name != "sink" or x is not None}

    def check(self, batch: tuple[int, ...], device: torch.device) -> None:
        if isinstance(self.sink, torch.Tensor):
            check_device("Softmax's sink", self.sink, device)
            if not fits(tuple(self.sink.shape), batch):
                raise ValueError(
                    f"Softmax's sink of shape {list(self.sink.shape)} does not broadcast to the leading shape "
                    f"{list(batch)}; for one per head give [heads]"
                )

    def of_block(self, batch: tuple[int, ...], n: Index) -> Normalizer:
        if not isinstance(self.sink, torch.Tensor):
            return self
        sink = self.sink.expand(batch).reshape(-1)[n]
        if type(self) is Softmax:
            return Softmax(self.temperature, sink)  # torch.compile cannot trace a copy
        part = copy(self)
        object.__setattr__(part, "sink", sink)  # it is frozen
        return part

    def __call__(self, e: Tensor) -> Tensor:
        if self.sink is not None:
            return Softmax(self.temperature)(self.with_sink(e))[..., :-1]
        empty = empty_rows(e)
        # Filled before the softmax, not only after it: NaN would come back through the gradient.
        e = e.masked_fill(empty, 0)
        if self.temperature != 1:
            e = self.scaled(e - largest(e))  # moved first: large energies would overflow
        return torch.softmax(e, dim=-1).masked_fill(empty, 0)

    def with_sink(self, e: Float[Tensor, "*batch q k"]) -> Float[Tensor, "*batch q k_and_sink"]:
        """Rows of energies with the sink's as the last."""
        sink = torch.as_tensor(self.sink, dtype=e.dtype, device=e.device)
        if sink.dim():
            sink = sink[..., None, None]
        return torch.cat([e, sink.expand(*e.shape[:-1], 1)], dim=-1)

    def scaled(self, e: Tensor) -> Tensor:
        return e if self.temperature == 1 else e / self.temperature

    def state(self, e: Tensor) -> Tensor:
        e = e if self.sink is None else self.with_sink(e)
        if self.temperature == 1:
            return mark_empty(torch.logsumexp(e, dim=-1))
        top = largest(e)
        rest = mark_empty(torch.logsumexp(self.scaled(e - top), dim=-1))
        return self.one_number(RowState(rest, top.squeeze(-1)))

    def logsumexp(self, e: Tensor) -> Tensor | None:
        e = e if self.sink is None else self.with_sink(e)
        empty = empty_rows(e)
        return torch.logsumexp(self.scaled(e.masked_fill(empty, 0)), dim=-1).masked_fill(empty.squeeze(-1), -torch.inf)

    def row_state(self, e: Tensor) -> RowState:
        if self.sink is None:
            return ShiftInvariant.row_state(self, e)
        return Softmax(self.temperature).row_state(self.with_sink(e))

    def weigh(self, e: Tensor, state: Tensor, j: Tensor) -> Tensor:
        return torch.exp(self.scaled(e) - state)

    def log_weigh_(self, e: Tensor, state: Tensor) -> Tensor | None:
        return (e if self.temperature == 1 else e.div_(self.temperature)).sub_(state)
