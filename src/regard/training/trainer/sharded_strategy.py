"""FSDP with a backward pass inside the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytorch_lightning.strategies import FSDPStrategy

if TYPE_CHECKING:
    from pytorch_lightning.utilities.types import STEP_OUTPUT


class ShardedStrategy(FSDPStrategy):
    """Calls the training step itself, not as the forward pass of the sharded module.

    FSDP prepares the backward pass when the forward pass of its module returns. Lightning makes the training step that
    forward pass, and a step that calls `backward` itself would do so before it returns. So the step calls the sharded
    module for the loss (`TrainingModule.forward`), and `backward` after that.
    """

    def training_step(self, *arguments: Any, **options: Any) -> STEP_OUTPUT:
        assert self.lightning_module is not None
        with self.precision_plugin.train_step_context():
            return self.lightning_module.training_step(*arguments, **options)
