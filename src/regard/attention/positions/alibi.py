"""ALiBi: a penalty on the energy that grows with the distance between query and key, at a slope of the head's own."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ..energies.modifiers import Modifier
from ..torch_transforms import readable
from .position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..block_indices import Batch


class Alibi(Modifier, Position):
    """e_ij − m_h |i + offset − j|, head h's slope m_h = 2^(−8h/H) (Press, Smith & Lewis 2022).

    Heads are the dimension before the queries. `Alibi(8)` has the slopes of the paper, `Alibi(slopes)` those of a
    tensor `[H]`, learned if it is a parameter. `offset` is the position of the first query, for key/value caches.
    """

    kernel = trace_key = "alibi"
    opaque = False
    additive = True

    def __init__(self, heads: int | Float[Tensor, " heads"], *, offset: int = 0) -> None:
        if isinstance(heads, torch.Tensor):
            if heads.dim() != 1 or not heads.numel() or not heads.is_floating_point():
                raise ValueError(f"Alibi takes one slope per head, [H]; got {heads.dtype} of shape {list(heads.shape)}")
            self.heads, self.slopes, self.published = heads.shape[0], heads, False
        else:
            if not isinstance(heads, int):
                raise TypeError(f"Alibi takes the number of heads or a tensor of slopes, got {heads!r}")
            if heads < 1:
                raise ValueError(f"Alibi needs at least one head, got {heads}")
            self.heads, self.published = heads, True
            self.slopes = torch.tensor(published_slopes(heads), dtype=torch.float32)
        self.offset = offset

    def arguments(self) -> dict[str, Any]:
        # A trace writes {"alibi": heads}, and slopes that are not the paper's as the tensor beside it.
        slopes = {} if self.published else {"slopes": self.slopes}
        return {"heads": self.heads, **slopes, "offset": self.offset}

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Alibi:
        return self if self.published else Alibi(function(self.slopes), offset=self.offset)

    def to_device(self, device: torch.device) -> Modifier:
        return Alibi(self.slopes.to(device), offset=self.offset) if self.published else self

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if not batch or batch[-1] != self.heads:
            raise ValueError(
                f"Alibi({self.heads}) needs {self.heads} heads in dimension -3, the leading shape is {list(batch)}"
            )

    def __call__(self, e: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        slope = self._on(e.device)[batch[-1]]
        return e - (slope * (i + self.offset - j).abs()).to(e.dtype)

    def continues(self, first: Modifier, queries: int) -> bool:
        if not isinstance(first, Alibi) or self.offset != first.offset + queries:
            return False
        return self.slopes is first.slopes or torch.equal(self.slopes, first.slopes)

    def kernel_arguments(self) -> dict[str, Any]:
        return {"slopes": self.slopes.detach().float(), "offset": self.offset}

    def _on(self, device: torch.device) -> Tensor:
        if not self.published or not readable(self.slopes):
            return self.slopes.to(device)  # a traced tensor must not be cached, and a learned one changes
        return _published_on(self.heads, device)

    def by_distance(self, distances: Int[Tensor, " n"]) -> Float[Tensor, "heads n"]:
        return -self.slopes.detach().cpu()[:, None] * distances.abs()

    def __repr__(self) -> str:
        of = self.heads if self.published else f"slopes [{self.heads}]"
        return f"Alibi({of}{f', offset={self.offset}' if self.offset else ''})"


@lru_cache(maxsize=64)
def _published_on(heads: int, device: torch.device) -> Float[Tensor, " heads"]:
    """Kept for all: a decoder makes an `Alibi` for each step, and a CUDA graph cannot copy from the CPU."""
    with torch.inference_mode(False):  # else a graph that needs gradients could not use what inference made first
        return torch.tensor(published_slopes(heads), dtype=torch.float32, device=device)


def published_slopes(heads: int) -> list[float]:
    """2^(−8h/H), h = 1 … H; where H is no power of two, those of the power below and every other one of the next."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    more = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return slopes + more[: heads - power]
