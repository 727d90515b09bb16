"""The model of a run: how it is made, and its weights, whole and finite, also where it is sharded or averaged."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..distributed.activation_checkpointing import checkpoint_activations
from ..distributed.model_shards import copy_whole, is_sharded, shard_model, whole_weights
from ..distributed.sharded_strategy import ShardedStrategy
from ..fine_tuning.warm_start import WarmStart, in_parts, require_parts
from ..run.checkpoints import on_cpu

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from pytorch_lightning.strategies import Strategy
    from torch import Tensor

    from ..optimization.moving_average import MovingAverage
    from ..recipe.recipe_sections import TrainingSection
    from ..run.run_folder import Run


class DivergedError(ValueError):
    """Training diverged: the loss or the weights are not finite. `reason` says which, without the advice."""

    def __init__(self, reason: str, run: Run) -> None:
        kept = f"; the last checkpoint is from before, in {run.checkpoints}" if run.last.exists() else ""
        advice = "a lower training.rate, a longer training.warmup or a training.clip may help"
        super().__init__(f"{reason}: {advice}{kept}")
        self.reason = reason


class TrainingModel:
    """A model while it is trained, with the moving average of its weights where there is one."""

    def __init__(self, model: Any, run: Run, strategy: Strategy, *, starts: bool) -> None:
        """Give a new model the weights of `training.init` if it `starts`, freeze parts of it, and shard it."""
        settings = run.recipe.training
        self.model, self.run = model, run
        self.average: MovingAverage | None = None
        self._whole: Any = None  # of a sharded model, a copy that is whole
        if settings.init and starts:
            WarmStart(run.recipe).copy_into(model)
        freeze_parts(model, settings)
        if isinstance(strategy, ShardedStrategy):
            self._whole = copy.deepcopy(model)
        if settings.activation_checkpointing:
            checkpoint_activations(model)
        if isinstance(strategy, ShardedStrategy):
            shard_model(model, strategy.device_mesh["data_parallel"])

    def whole(self, device: torch.device) -> Any:
        """The model, or where it is sharded, a whole copy: decoding calls its parts, which FSDP does not expect."""
        if not is_sharded(self.model):
            return self.model
        whole = self._whole.to(device).eval()
        copy_whole(self.model, whole)
        return whole

    def averaged(self) -> AbstractContextManager[None]:
        """Context in which the model has the moving average of its parameters, where there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    def weights(self, update: int, *, keep: bool) -> dict[str, Tensor]:
        """All weights after an update; of a sharded model, only where `keep`, and every process must call this.

        Checked, since a finite loss may have gradients that are not finite.
        """
        if is_sharded(self.model):
            weights, finite = whole_weights(self.model, keep=keep)
        else:
            with self.averaged():
                weights = on_cpu(self.model.state_dict())
                if self.average is not None:  # on a CPU these are the parameters themselves, which change back
                    weights = copy.deepcopy(weights)
            finite = all(bool(tensor.isfinite().all()) for tensor in weights.values())
        if not finite:
            raise DivergedError(f"the weights after update {update} are not finite", self.run)
        return weights


def freeze_parts(model: Any, settings: TrainingSection) -> None:
    """Parameters of frozen parts get no gradient. A tied table is frozen under any of its names."""
    require_parts(model, settings.freeze, "training.freeze")
    require_parts(model, settings.part_rates, "training.part_rates")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if in_parts(name, settings.freeze):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        if not settings.freeze:
            raise ValueError(
                "the model has no parameter to learn: none of model.parameters() has requires_grad; assign layers to "
                "attributes, and lists of them as nn.ModuleList"
            )
        raise ValueError(f"training.freeze = {settings.freeze} leaves no parameter to learn")
