"""`fit(model, …)`: the settings, the loss and the batches of a PyTorch module that no recipe describes.

Batches are read by their numbers: any of them can be made again, in any process.
"""

from __future__ import annotations

import inspect
import math
import random
import re
import tomllib
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from ..files import write_text
from ..models.decoder import Loss
from ..wording import count_of
from .devices import Processes, ignore_signals
from .recipe import recipe_toml
from .recipe_sections import Reader, RecipeError, Section, TrainingSection, key, natural
from .run_batches import Corpora, UpdateBatches
from .run_folder import Run
from .tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..data.rows import Pair
    from ..data.tokenizer_pair import TokenizerPair
    from ..models.configurations import TaskName
    from .loop import Given

NUMBERED = "fit takes batches by their numbers, so that a run can resume and several processes can share them"


FOR_RECIPES = {
    "init": "load weights into the model before fit",
    "init_parts": "load weights into the model before fit",
    "tokens": "the batches of `train` are taken as they are",
    "smoothing": "the loss is the model's own: smooth the labels there",
    "best": "give fit a metric; without one the lowest loss is the best",
    "activation_checkpointing": "use torch.utils.checkpoint in the model",
}
"""Keys of [training] that mean nothing for a model of one's own, and what does it there."""


class ModelRecipe(Section):
    """recipe.toml of such a run, which has no [data]."""

    name: str = key(pattern=r"^[\w.-]+$")
    about: str = "A model of one's own, trained with regard.training.fit."
    seed: int = natural(default=1)
    training: TrainingSection = key()

    @classmethod
    def of_call(
        cls,
        folder: Path,
        seed: int,
        settings: dict[str, Any],
        train: Any,
        *,
        validates: bool = True,
        smooths: bool = False,
    ) -> ModelRecipe:
        """What `fit` was called with. A DataLoader says how many workers it has.

        Without a validation an average of checkpoints cannot be compared with the last one, and must be asked for.
        """
        call = "the call of fit(model, …)"
        if useless := [name for name in FOR_RECIPES if name in settings and not (name == "smoothing" and smooths)]:
            lines = [f"{name}: is for models of a recipe; {FOR_RECIPES[name]}" for name in useless]
            raise RecipeError(call, lines)
        defaults = {"workers": getattr(train, "num_workers", 0)} | ({} if validates else {"average": 1})
        training = Reader().read(TrainingSection, defaults | settings, call)
        recipe = Reader().read(cls, {"name": run_name(folder), "seed": seed, "training": training}, call)
        if training.graphs is True:
            raise ValueError("graphs are for models of a recipe")
        if training.strategy == "fsdp":
            raise ValueError(
                'strategy="fsdp" is for models of a recipe: a model of one\'s own stays sharded over the processes, '
                'and cannot get its kept weights; use strategy="ddp"'
            )
        if not validates and (training.patience or training.schedule == "plateau"):
            key = "patience" if training.patience else 'schedule="plateau"'
            raise ValueError(f"{key} follows the validation, and valid is not given: give it, or leave {key} out")
        return recipe

    @classmethod
    def open(cls, folder: Path) -> ModelRecipe:
        """The settings of an existing run."""
        file = Run.recipe_file(folder)
        try:
            return Reader().read(cls, tomllib.loads(file.read_text(encoding="utf-8")), "it")
        except (RecipeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            line = " ".join(str(error).split())[:300]
        raise ValueError(f"{file} has not the settings of a run that fit(model, …) began: {line}")


def run_name(folder: Path) -> str:
    """The name of a run in this folder: that of the folder, with "-" for characters that a name cannot have."""
    return re.sub(r"[^\w.-]+", "-", folder.resolve().name) or "model"


def as_loss(value: Any, name: str) -> tuple[Loss, str]:
    """What a loss of one's own returned, and what it is a sum of; a scalar is the mean of a batch."""
    unit = "tokens"
    if not isinstance(value, Loss):
        if not isinstance(value, torch.Tensor) or value.dim():
            shape = (
                f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            )
            raise ValueError(
                f"{name} returned {shape}; it should be a scalar tensor, the mean loss of the batch, such as "
                "losses.mean(), or a regard.models.Loss"
            )
        value, unit = Loss(value, value.detach(), torch.ones((), device=value.device)), "batches"
    if torch.is_grad_enabled() and not value.total.requires_grad:
        raise ValueError(
            f"{name} returned a loss without a gradient, so nothing can be learned from it: compute it from "
            "parameters that have requires_grad, and without torch.no_grad(), .detach(), .item() or .argmax()"
        )
    return value, unit


def takes_smoothing(model: Any) -> bool:
    """Whether `model.loss` smooths labels, as models of regard do."""
    return callable(getattr(model, "loss", None)) and "smoothing" in inspect.signature(model.loss).parameters


class ModelLoss(nn.Module):
    """A model with the loss that the loop expects: its own `model.loss(batch)`, or `given(model, batch)`."""

    unit = "batches"

    def __init__(self, model: nn.Module, given: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        if given is None and not callable(getattr(model, "loss", None)):
            raise ValueError(
                f"{type(model).__name__} has no method loss(batch); it should return the mean loss of a batch, a "
                "scalar; or give fit a loss(model, batch)"
            )
        self.model, self._given, self._smooths = model, given, given is None and takes_smoothing(model)

    def loss(self, batch: Any, *, smoothing: float = 0.0) -> Loss:
        if self._given is None:
            options = {"smoothing": smoothing} if self._smooths else {}
            value, name = self.model.loss(batch, **options), f"{type(self.model).__name__}.loss"  # type: ignore[operator]
        else:
            value, name = self._given(self.model, batch), getattr(self._given, "__name__", "loss")
        loss, self.unit = as_loss(value, name)
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
    measure = "loss"
    command: ClassVar[str] = "model.safetensors"
    tag: ClassVar[str] = "other"

    def __init__(self, recipe: Any, model: nn.Module, given: Given | None = None) -> None:
        super().__init__(recipe)
        self._model = ModelLoss(model, None if given is None else given.loss)
        if given is not None and given.metric is not None:
            self.measure_by(given.metric)

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


class ModelData(Corpora):
    """Batches that are given, instead of a corpus that is prepared."""

    def __init__(self, run: Any, task: Task, say: Any, train: Any, valid: Any) -> None:
        super().__init__(run, task, say)
        self.tokenizers: Any = None
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

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def load(self, processes: Processes) -> None:
        self.updates = UpdateBatches(
            self.task,
            self.train,
            accumulate=self.run.recipe.training.accumulate,
            seed=self.run.recipe.seed,
            rank=processes.rank,
            world=processes.world,
            fixed_shapes=False,
        )

    def worker_settings(self, workers: int) -> dict[str, Any]:
        return worker_settings(self.train, workers)


class NumberedBatches:
    """Batches of which every epoch has equally many; an entry says what one of them is made of.

    Those of a sequence are their numbers; training takes them in another order in every epoch.
    """

    workers: int = 0  # processes that make the batches of a validation
    worker_options: Mapping[str, Any] = {}  # of a DataLoader that has workers
    worker_start: Callable[[int], object] | None = None  # called in each of them, with its number
    pins_memory: bool = False

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, seed: int, number: int) -> Sequence[Any]:
        """The entries of an epoch, in the order of training."""
        order = list(range(len(self)))
        random.Random(f"{seed} {number}").shuffle(order)
        return order

    def validation(self, seed: int) -> Sequence[Any]:
        """The entries of a validation, the same for all of them."""
        return range(len(self))

    def batch(self, entry: Any) -> Any:
        return self._batches[entry]


class LoaderBatches(NumberedBatches):
    """The batches of a DataLoader: its dataset, its batch size and its collate_fn, without its sampler and iterator.

    An entry is the rows of a batch, in the order of `random` for (seed, epoch) where the loader shuffles.
    """

    def __init__(self, loader: DataLoader[Any], name: str) -> None:
        _require_rows(loader, name)
        self._dataset: Any = loader.dataset
        self._collate = loader.collate_fn
        self._size, self._drops = loader.batch_size, loader.drop_last  # no size: the dataset has batches
        self._shuffles = isinstance(loader.sampler, RandomSampler)
        self.workers, self.worker_start = loader.num_workers, loader.worker_init_fn
        names = ("timeout", "prefetch_factor", "multiprocessing_context")
        self.worker_options = {each: getattr(loader, each) for each in names}
        self.pins_memory = loader.pin_memory and torch.cuda.is_available()

    def __len__(self) -> int:
        rows, size = len(self._dataset), self._size or 1
        return rows // size if self._drops else -(-rows // size)

    def epoch(self, seed: int, number: int) -> Sequence[Any]:
        order = list(range(len(self._dataset)))
        if self._shuffles:
            random.Random(f"{seed} {number}").shuffle(order)
        if self._size is None:
            return order
        return [order[n * self._size : (n + 1) * self._size] for n in range(len(self))]

    def validation(self, seed: int) -> Sequence[Any]:
        return self.epoch(seed, 0)

    def batch(self, entry: Any) -> Any:
        if self._size is None:
            return self._collate(self._dataset[entry])
        several = getattr(self._dataset, "__getitems__", None)  # as PyTorch's own loader reads them
        return self._collate([self._dataset[row] for row in entry] if several is None else several(entry))


class EpochShare(Dataset[Any]):
    """The batches of one process in one epoch, or in a validation.

    Each is made with random numbers of its own: they do not depend on what was made before, or by which process.
    """

    def __init__(self, source: NumberedBatches, entries: Sequence[Any], rank: int, world: int, key: str) -> None:
        self._source, self._entries, self._key = source, entries, key
        self._numbers = range(rank, len(entries), world)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> Any:
        number = self._numbers[i]
        with random_numbers(f"{self._key} {number}"):
            return self._source.batch(self._entries[number])


def numbered_batches(batches: Any, name: str) -> NumberedBatches:
    """What `fit` was given as `train` or `valid`, by numbers; an error says what to give instead."""
    if isinstance(batches, DataLoader):
        return LoaderBatches(batches, name)
    if isinstance(batches, Mapping) or not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
        kind = type(batches).__name__
        raise ValueError(
            f"{name} is of type {kind}, and {NUMBERED}: give a list or another sequence of batches, or a DataLoader of "
            f"PyTorch over a dataset with numbered rows. list({name}) makes a list of what can be iterated over"
        )
    return NumberedBatches(batches)


@contextmanager
def random_numbers(key: str) -> Iterator[None]:
    """Context in which Python, NumPy and PyTorch have the random numbers of this key, on the CPU; then as before.

    Not on a GPU: a worker process may not use it.
    """
    seed = random.Random(key).getrandbits(32)
    python, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the global state is what datasets use
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torchs)


def _require_rows(loader: DataLoader[Any], name: str) -> None:
    kind = type(loader.dataset).__name__
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise ValueError(
            f"{name} is a DataLoader over {kind}, whose rows have no numbers, and {NUMBERED}: give one over a dataset "
            f"with __len__ and __getitem__, or list({name}) if all batches fit in memory; a recipe reads pairs of text "
            'that do not, with data.kind = "stream"'
        )
    sampler, several = loader.sampler, loader.batch_sampler
    plain = type(sampler) in (RandomSampler, SequentialSampler) and not getattr(sampler, "replacement", False)
    if type(loader).__iter__ is not DataLoader.__iter__ or not plain or type(several) not in (BatchSampler, type(None)):
        raise ValueError(
            f"{name} is a DataLoader with an __iter__ or a sampler of its own, or one of several processes, and "
            f"{NUMBERED}: leave it out and say shuffle=True or False, or give a sequence of batches"
        )
