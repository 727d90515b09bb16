"""The products g_i · v_j that contributions multiply weights by, as the Triton kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from .matrix_region import MatrixRegion


@dataclass(frozen=True, slots=True, eq=False)
class ValueProducts:
    """Values and directions of some matrices."""

    v: Float[Tensor, "n k d"]
    g: Float[Tensor, "n q d"]
    finite: bool
    """Whether every value is finite."""

    @staticmethod
    def of(r: MatrixRegion, v: Tensor, g: Tensor, finite: bool) -> ValueProducts | None:
        """None where the kernels do not apply: they multiply numbers of one precision, that of queries and keys."""
        if not v.dtype == g.dtype == r.a.dtype == r.b.dtype or v.shape[-1] > 256 or v.shape[-1] < 1:
            return None
        v, g = (x if x.stride(-1) == 1 else x.contiguous() for x in (v, g))
        return ValueProducts(v, g, finite)

    def arguments(self) -> dict[str, Any]:
        width = self.v.shape[-1]
        align = 1 if (self.v.stride(0) % 16 or self.g.stride(0) % 16) else 16
        return {
            "g": self.g,
            "v": self.v,
            "g_at": _beginnings(self.g.shape[0], self.g.stride(0) // align, self.g.device),
            "v_at": _beginnings(self.v.shape[0], self.v.stride(0) // align, self.v.device),
            "g_row": self.g.stride(1),
            "v_row": self.v.stride(1),
            "DIRECTED": True,
            "FINITE": self.finite,
            "DV": width,
            "BDV": max(16, 1 << (width - 1).bit_length()),
            "PRODUCT_ALIGN": align,
        }

    def bulk(self) -> bool:
        """Whether the copy engine can read the directions; see `MatrixRegion.bulk`."""
        width = self.g.shape[-1]
        return (
            self.g.stride(0) % 16 == 0
            and self.v.stride(0) % 16 == 0
            and self.g.data_ptr() % 16 == 0
            and self.g.stride(1) % 8 == 0
            and self.g.stride(1) >= width  # not one direction for all queries, with stride 0
            and width >= 16
            and width & (width - 1) == 0
        )


def no_products(r: MatrixRegion) -> dict[str, Any]:
    """The same arguments where weights are asked for: no kernel reads them."""
    own = {"g": r.a, "v": r.b, "g_at": r.q_at, "v_at": r.k_at, "g_row": r.a.stride(-2), "v_row": r.b.stride(-2)}
    return own | {"DIRECTED": False, "FINITE": True, "DV": 16, "BDV": 16, "PRODUCT_ALIGN": 1}


@lru_cache(maxsize=64)
def _beginnings(count: int, step: int, device: torch.device) -> Int[Tensor, " n"]:
    return torch.arange(count, device=device) * step
