"""The optimizer of every training: AdamW (Loshchilov and Hutter 2019) as one fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from ..recipe.recipe_sections import TrainingSection


def adamw(groups: Iterable[list[nn.Parameter]], settings: TrainingSection) -> torch.optim.AdamW:
    """AdamW over groups of parameters.

    Fused, it reads and writes each number once. On a CPU that takes a fifth of the time of PyTorch's default, which has
    a dozen passes over memory. Complex parameters, which a model of one's own may have, have no fused kernel.
    """
    groups = list(groups)
    return torch.optim.AdamW(
        [{"params": parameters} for parameters in groups],
        lr=settings.rate,
        eps=1e-9,
        fused=all(parameter.is_floating_point() for parameters in groups for parameter in parameters),
        **adam_settings(settings),
    )


def adam_settings(settings: TrainingSection) -> dict[str, Any]:
    """What a resumed run may change. The rate is set at every update."""
    first, second = settings.betas
    return {"betas": (first, second), "weight_decay": settings.decay}
