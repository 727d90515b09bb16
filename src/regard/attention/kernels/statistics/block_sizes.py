"""Block sizes of the statistics kernels, and how many programs run at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .matrix_region import MatrixRegion


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a kernel is cut: queries and keys of one block, warps, stages of the pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None
    """The most a thread may use, so that more programs fit a processor."""
    programs: int = 3
    """How many fit a processor."""

    def options(self) -> dict[str, Any]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"BM": self.queries, "BN": self.keys, "num_warps": self.warps, "num_stages": self.stages, **limit}


def sizes(r: MatrixRegion, kernel: str) -> Sizes:
    """Measured on an H200 (benchmarks/statistics_gpu.py); small where a block is only emulated."""
    if r.a.device.type == "cpu":
        return Sizes(32, 32, 4, 1)
    wide = r.a.shape[-1] > 128
    if r.a.dtype == torch.float32:
        # Without tensor cores the products are unrolled: large blocks take minutes to compile, and spill.
        return Sizes(32, 32 if wide else 64, 4, 2)
    if kernel == "walk":
        return Sizes(64, 128, 4, 2, None if wide else 168)
    if kernel == "contributions":
        return Sizes(64, 64, 4, 2, programs=2)
    return Sizes(64, 64, 4, 2)


def programs(r: MatrixRegion, cut: Sizes) -> int:
    """How many programs a GPU works on at once."""
    if r.a.device.type == "cpu":
        return 2 * r.count
    return cut.programs * _processors(r.a.device)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
