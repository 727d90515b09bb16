"""The parameter groups of the optimizer: one for each part of `training.part_rates`, and one for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...noun_count import count_of
from ..run.run_extension import weights_source
from .warm_start import in_parts

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from ..recipe.recipe_sections import TrainingSection

REST = ""
"""The name of the group of parameters that `training.part_rates` does not name; it comes first."""


def parameter_groups(module: nn.Module, settings: TrainingSection) -> dict[str, list[nn.Parameter]]:
    """Part → its parameters that learn. A parameter belongs to the longest name that fits; empty groups are left out.

    The names alone decide the groups, not the rates: a run whose `training.rate` changes keeps them.
    """
    groups: dict[str, list[nn.Parameter]] = {REST: []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parts = [part for part in settings.part_rates if in_parts(name.removeprefix("model."), [part])]
            groups.setdefault(max(parts, key=len, default=REST), []).append(parameter)
    return {part: parameters for part, parameters in groups.items() if parameters}


def rate_share(part: str, settings: TrainingSection) -> float:
    """The highest rate of a group, as a share of `training.rate`."""
    return settings.part_rates.get(part, settings.rate) / settings.rate


def require_part_groups(checkpoint: dict[str, Any], settings: TrainingSection, rate: float, folder: Path) -> None:
    """Refuse a checkpoint of an earlier version, which put parts with the same rate into one group.

    `rate` is the `training.rate` with which the checkpoint was written.
    """
    if "groups" in checkpoint["regard"]:
        return
    count, rates = _count(checkpoint), [rate, *settings.part_rates.values()]
    if count < len(rates) and len(set(rates)) < len(rates):
        raise _other_groups(count, folder)


def require_groups(checkpoint: dict[str, Any], count: int, folder: Path) -> None:
    """Refuse a checkpoint whose optimizer has another number of groups."""
    if checkpoint.get("optimizer_states") and _count(checkpoint) != count:  # FSDP has already loaded its own
        raise _other_groups(_count(checkpoint), folder)


def _count(checkpoint: dict[str, Any]) -> int:
    return len(checkpoint["optimizer_states"][0]["param_groups"])


def _other_groups(count: int, folder: Path) -> ValueError:
    groups = count_of(count, "group")
    return ValueError(
        f"the checkpoint of {folder} cannot be resumed: its optimizer has {groups} of parameters, and this version "
        "makes one for each part of training.part_rates, where an earlier one made one for each rate. "
        f"Begin a new run, perhaps with {weights_source(folder)}, or resume with the version that wrote it"
    )
