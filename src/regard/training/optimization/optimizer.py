"""The optimizer of every training: AdamW (Loshchilov and Hutter 2019) as one fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from ..recipe.recipe_sections import TrainingSection


def adamw(groups: Iterable[list[nn.Parameter]], settings: TrainingSection) -> torch.optim.AdamW:
    """AdamW over groups of parameters.

    Fused, it reads and writes each number once, where PyTorch's default on a CPU has a dozen passes over memory. A
    model of one's own may have parameters without a fused kernel: complex ones, and views with gaps between their
    numbers, of which PyTorch's kernel on a CPU would update the numbers in the gaps.
    """
    groups = list(groups)
    return torch.optim.AdamW(
        [{"params": parameters} for parameters in groups],
        lr=settings.rate,
        eps=1e-9,
        fused=all(x.is_floating_point() and _is_dense(x) for parameters in groups for x in parameters),
        **adam_settings(settings),
    )


def adam_settings(settings: TrainingSection) -> dict[str, Any]:
    """What a resumed run may change. The rate is set at every update."""
    first, second = settings.betas
    return {"betas": (first, second), "weight_decay": settings.decay}


def _is_dense(x: Tensor) -> bool:
    """Whether the numbers lie side by side in memory, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
