"""Lightning's strategy for FSDP2, with checkpoints that another number of processes can resume from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning.strategies import ModelParallelStrategy

from ..run.checkpoint_manifest import read_checkpoint
from .child_processes import ProcessLauncher
from .sharded_checkpoint import load_shards, save_shards, shard_folder

if TYPE_CHECKING:
    from torch.optim import Optimizer


class ShardedStrategy(ModelParallelStrategy):
    """`TrainingModule.configure_model` shards its model over `device_mesh["data_parallel"]`.

    A checkpoint is last.ckpt, as without shards but without tensors of the model, and a folder of shards beside it.
    """

    def __init__(self, processes: int, continuation: str) -> None:
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1)
        self.continuation = continuation
        self.digests: dict[str, str] = {}  # SHA-256 of the files of the last shards, named relative to checkpoints/

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = ProcessLauncher(self, self.continuation)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        folder = shard_folder(Path(filepath).parent, checkpoint["global_step"])
        self.digests = save_shards(folder, self._learner, self.optimizers[0])
        if self.is_global_zero:
            checkpoint["optimizer_states"] = []
            checkpoint["regard"]["sharded"] = True
            self.checkpoint_io.save_checkpoint(checkpoint, filepath)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = read_checkpoint(Path(checkpoint_path))
        if not checkpoint["regard"].get("sharded"):
            raise ValueError(
                f"{checkpoint_path} is of an earlier version, whose FSDP this version no longer has: begin a new run, "
                "perhaps with training.init, or resume with the version that wrote it"
            )
        folder = shard_folder(Path(checkpoint_path).parent, checkpoint["global_step"])
        load_shards(folder, self._learner, self.optimizers[0])
        return checkpoint

    @property
    def _learner(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.model
