"""What `fit` needs to train a PyTorch module that no recipe describes: its task and its data."""

from __future__ import annotations

import inspect
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from torch import nn
from torch.utils.data import DataLoader

from ...atomic_write import write_text
from ...models import Loss
from ...noun_count import count_of
from ..recipe.recipe_writer import recipe_toml
from ..tasks.task import Task
from ..trainer.data_module import DataModule, UpdateBatches
from ..trainer.interrupt_signals import ignore_signals
from .numbered_batches import EpochShare, NumberedBatches, numbered_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ...data import Pair, TokenizerPair
    from ...models.config_base import TaskName


class ModelLoss(nn.Module):
    """A model with the loss that the trainer expects. `model.loss(batch)` is a `Loss`, or a mean, as a scalar."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not callable(getattr(model, "loss", None)):
            raise ValueError(
                f"{type(model).__name__} has no method loss(batch); it should return the mean loss of a batch, a scalar"
            )
        self.model = model
        self._smooths = "smoothing" in inspect.signature(model.loss).parameters  # type: ignore[arg-type]

    def loss(self, batch: Any, *, smoothing: float = 0.0) -> Loss:
        options = {"smoothing": smoothing} if self._smooths else {}
        loss: Loss | Tensor = self.model.loss(batch, **options)  # type: ignore[operator]
        name = f"{type(self.model).__name__}.loss"
        if not isinstance(loss, Loss):
            if not isinstance(loss, torch.Tensor) or loss.dim():
                shape = (
                    f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                )
                raise ValueError(
                    f"{name} returned {shape}; it should be a scalar tensor, the mean loss of the batch, such as "
                    "losses.mean(), or a regard.models.Loss"
                )
            loss = Loss(loss, loss.detach(), torch.ones((), device=loss.device))
        if torch.is_grad_enabled() and not loss.total.requires_grad:
            raise ValueError(
                f"{name} returned a loss without a gradient, so nothing can be learned from it: compute it from "
                "parameters that have requires_grad, and without torch.no_grad(), .detach(), .item() or .argmax()"
            )
        return loss

    def save_pretrained(self, folder: str | Path, *, card: str | None = None) -> None:
        """What the model's own `save_pretrained` writes, or model.safetensors."""
        from safetensors.torch import save_model

        folder = Path(folder)
        if hasattr(self.model, "save_pretrained"):
            self.model.save_pretrained(folder)  # type: ignore[operator]
        else:
            save_model(self.model, str(folder / "model.safetensors"))
        if card is not None:
            write_text(folder / "README.md", card)

    def load_kept(self, folder: Path) -> None:
        """Load what `save_pretrained` wrote, for use: the model is in evaluation mode, as after training."""
        from safetensors.torch import load_model

        kind = type(self.model)
        if not hasattr(self.model, "save_pretrained"):
            load_model(self.model, folder / "model.safetensors")
        elif hasattr(kind, "from_pretrained"):
            self.model.load_state_dict(kind.from_pretrained(folder).state_dict())
        else:
            raise ValueError(
                f"{kind.__name__} has save_pretrained and no from_pretrained; load its weights from {folder} yourself"
            )
        self.eval()


class ModelTask(Task):
    """Minimises the loss of a model, which is also its score."""

    name: ClassVar[TaskName] = "write"
    measure: ClassVar[str] = "loss"
    command: ClassVar[str] = "model.safetensors"
    tag: ClassVar[str] = "other"

    def __init__(self, recipe: Any, model: nn.Module) -> None:
        super().__init__(recipe)
        self._model = ModelLoss(model)

    def model(self, tokenizers: Any, train: Any) -> Any:
        return self._model

    def load_kept(self, folder: Path) -> None:
        """Load the weights of a finished run into the model."""
        self._model.load_kept(folder)

    def batches(
        self, encoded: Any, *, seed: int, epoch: int, rank: int, world: int, fixed_shapes: bool | Literal["full"]
    ) -> Any:
        """`world` shares, equally long: what is left over is in no share."""
        entries = encoded.epoch(seed, epoch)
        return EpochShare(encoded, entries[: len(entries) // world * world], rank, world, f"{seed} {epoch}")

    def checks(self, encoded: Any, *, rank: int = 0, world: int = 1) -> Iterable[Any]:
        entries, seed = encoded.validation(self.recipe.seed), self.recipe.seed
        share = EpochShare(encoded, entries, rank, world, f"{seed} validation")
        if not encoded.workers:
            return (share[i] for i in range(len(share)))
        return DataLoader(share, batch_size=None, **worker_settings(encoded, encoded.workers))

    @torch.no_grad()
    def loss_sums(self, model: Any, encoded: Any, *, rank: int = 0, world: int = 1) -> Tensor:
        device = next(model.parameters()).device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        for batch in self.checks(encoded, rank=rank, world=world):
            loss = model.loss(move_data_to_device(batch, device))
            sums += torch.stack([loss.nll.double(), loss.tokens.double()])
        return sums

    def answers(self, model: Any, tokenizers: TokenizerPair, pairs: Sequence[Pair]) -> list[str]:
        return []

    def score(self, answers: list[str], pairs: Sequence[Pair], nll: float) -> float:
        return -nll

    def model_card(self, kept: str, score: float, provenance: str = "") -> str:
        settings = recipe_toml(self.recipe)
        measured = f"Validation {self.shown(score)}." if math.isfinite(score) else "It was not validated."
        head = f"# {self.recipe.name}\n\n{measured} The weights are {kept}.\n"
        return f"{head}\n```toml\n{settings}```\n\n## Provenance\n\n{provenance}\n"


def worker_settings(source: NumberedBatches, workers: int) -> dict[str, Any]:
    """The arguments of a DataLoader that makes batches of a source in so many processes."""
    settings: dict[str, Any] = {"num_workers": workers, "pin_memory": source.pins_memory}
    if workers:
        settings |= source.worker_options
        settings["worker_init_fn"] = partial(_start_worker, source.worker_start)
    return settings


def _start_worker(start: Callable[[int], object] | None, worker: int) -> None:
    ignore_signals()
    if start is not None:
        start(worker)


class NoTokenizers:
    """In place of the tokenizers of a recipe."""

    def save(self, folder: Path) -> None:
        """Nothing is written."""


class ModelData(DataModule):
    """Batches that are given, instead of a corpus that is prepared."""

    def __init__(self, run: Any, task: Task, say: Any, train: Any, valid: Any) -> None:
        super().__init__(run, task, say)
        self.tokenizers: Any = NoTokenizers()
        self.train: Any = numbered_batches([] if train is None else train, "train")
        self.valid: Any = numbered_batches([] if valid is None else valid, "valid")
        self.validates = valid is not None
        self.valid_pairs = []
        if not len(self.train):
            raise ValueError("fit needs batches to train on, and train has none: train=[batch, …], or a DataLoader")
        if self.validates and not len(self.valid):
            raise ValueError("valid has no batches; give some, or leave it out: then nothing is validated")
        settings = run.recipe.training
        needed, there = settings.devices * settings.nodes * settings.accumulate, len(self.train)
        if there < needed:
            raise ValueError(
                f"an update takes {count_of(needed, 'batch', 'batches')} (processes × accumulate), and train has "
                f"{there:,}: give more, or lower accumulate"
            )

    def prepare_data(self) -> None:
        """There is nothing to prepare."""

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        self.updates = UpdateBatches(
            self.task,
            self.train,
            accumulate=self.run.recipe.training.accumulate,
            seed=self.run.recipe.seed,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
            fixed_shapes=False,
        )

    def worker_settings(self, workers: int) -> dict[str, Any]:
        return worker_settings(self.train, workers)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return [move_data_to_device(part, device) for part in batch]
