"""What `fit` needs to train a PyTorch module that no recipe describes: its task, its data and its settings."""

from __future__ import annotations

import inspect
import random
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from pydantic import Field, ValidationError
from torch import nn

from ...atomic_write import write_text
from ...models import Loss
from ..recipe.data_section import Count, StrictSection
from ..recipe.recipe_sections import TrainingSection  # noqa: TC001  pydantic reads it at run time
from ..recipe.recipe_writer import recipe_toml
from ..run.run_folder import Run
from ..tasks.task import Task
from .data_module import DataModule, UpdateBatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ...data import Pair, TokenizerPair
    from ...models.config_base import TaskName


class ModelRecipe(StrictSection):
    """The settings of a run whose model and data are given in Python: recipe.toml has them, and no [data]."""

    name: str = Field(pattern=r"^[\w.-]+$")
    about: str = "A model of one's own, trained with regard.training.fit."
    seed: Count = 1
    training: TrainingSection

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()

    @classmethod
    def open(cls, folder: Path) -> ModelRecipe:
        """The settings of an existing run."""
        file = Run.recipe_file(folder)
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"{file} has not the settings of a run that fit(model, …) began: {reason}") from None


def run_name(folder: Path) -> str:
    """The name of a run in this folder: that of the folder, with "-" for characters that a name cannot have."""
    return re.sub(r"[^\w.-]+", "-", folder.resolve().name) or "model"


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
        if isinstance(loss, Loss):
            return loss
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise ValueError(f"{type(self.model).__name__}.loss returned {loss!r:.60}; it should be a scalar tensor")
        return Loss(loss, loss.detach(), torch.ones((), device=loss.device))

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


class ShuffledBatches:
    """The batches of one process in one epoch, in an order that the seed and the epoch decide."""

    def __init__(self, batches: Sequence[Any], seed: int, epoch: int, rank: int, world: int) -> None:
        order = list(range(len(batches)))
        random.Random(f"{seed} {epoch}").shuffle(order)
        self._batches, self._order = batches, order[: len(order) // world * world][rank::world]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, i: int) -> Any:
        return self._batches[self._order[i]]


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
        return ShuffledBatches(encoded, seed, epoch, rank, world)

    def checks(self, encoded: Any, *, rank: int = 0, world: int = 1) -> Any:
        return [encoded[n] for n in range(rank, len(encoded), world)]

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
        head = f"# {self.recipe.name}\n\nValidation {self.shown(score)}. The weights are {kept}.\n"
        return f"{head}\n```toml\n{settings}```\n\n## Provenance\n\n{provenance}\n"


class NoTokenizers:
    """In place of the tokenizers of a recipe."""

    def save(self, folder: Path) -> None:
        """Nothing is written."""


class ModelData(DataModule):
    """Batches that are given, instead of a corpus that is prepared."""

    def __init__(self, run: Any, task: Task, say: Any, batches: Sequence[Any], valid: Sequence[Any]) -> None:
        super().__init__(run, task, say)
        if not len(batches) or not len(valid):
            raise ValueError(f"fit needs batches to train and to validate on; got {len(batches)} and {len(valid)}")
        self.tokenizers: Any = NoTokenizers()
        self.train: Any = batches
        self.valid: Any = valid
        self.valid_pairs = []

    def prepare_data(self) -> None:
        """There is nothing to prepare."""

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        world, settings = self.trainer.world_size, self.run.recipe.training
        if len(self.train) < world * settings.accumulate:
            raise ValueError(
                f"an update takes {world * settings.accumulate} batches (processes × training.accumulate), and there "
                f"are {len(self.train)}"
            )
        self.updates = UpdateBatches(
            self.task,
            self.train,
            accumulate=settings.accumulate,
            seed=self.run.recipe.seed,
            rank=self.trainer.global_rank,
            world=world,
            fixed_shapes=False,
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return [move_data_to_device(part, device) for part in batch]
