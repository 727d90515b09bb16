"""Whether a checkpoint is of a model with the same parameters, before any of them is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from ..own_model.model_task import ModelLoss

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def require_same_parameters(stored: Mapping[str, Tensor], module: Any, folder: Path) -> None:
    """Raise an error that names the first parameter that a checkpoint and the module's model do not share.

    It is named as in `model.state_dict()`. A sharded checkpoint stores none here.
    """
    if not stored:
        return
    prefix = "model.model." if isinstance(module.model, ModelLoss) else "model."
    here = module.state_dict()
    for name in dict.fromkeys([*here, *stored]):
        if is_lazy(here.get(name)):  # it takes any shape
            continue
        has, needs = (_shape(weights.get(name)) for weights in (stored, here))
        if has != needs:
            raise ValueError(
                f"{name.removeprefix(prefix)} {has} in the checkpoint of {folder} and {needs} in the model: resume "
                "with the model that the run was begun with, or begin a new run in another folder"
            )


def _shape(tensor: Tensor | None) -> str:
    return "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
