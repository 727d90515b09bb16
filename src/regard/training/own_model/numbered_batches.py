"""The batches that `fit(model, …)` is given, by their numbers: any of them can be made again, in any process."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NUMBERED = "fit takes batches by their numbers, so that a run can resume and several processes can share them"


class NumberedBatches(ABC):
    """Batches of which every epoch has equally many; an entry says what one of them is made of."""

    workers: int = 0  # processes that make the batches of a validation
    worker_options: Mapping[str, Any] = {}  # of a DataLoader that has workers
    worker_start: Callable[[int], object] | None = None  # called in each of them, with its number
    pins_memory: bool = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def epoch(self, seed: int, number: int) -> Sequence[Any]:
        """The entries of an epoch, in the order of training."""

    @abstractmethod
    def validation(self, seed: int) -> Sequence[Any]:
        """The entries of a validation, the same for all of them."""

    @abstractmethod
    def batch(self, entry: Any) -> Any: ...


class SequenceBatches(NumberedBatches):
    """A sequence of batches; training takes them in another order in every epoch."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, seed: int, number: int) -> Sequence[int]:
        order = list(range(len(self)))
        random.Random(f"{seed} {number}").shuffle(order)
        return order

    def validation(self, seed: int) -> Sequence[int]:
        return range(len(self))

    def batch(self, entry: int) -> Any:
        return self._batches[entry]


class LoaderBatches(NumberedBatches):
    """The batches of a DataLoader: its dataset, its sampler and its collate_fn, without its iterator.

    An entry is the rows of a batch. The sampler draws those of an epoch with the random numbers of that epoch.
    """

    def __init__(self, loader: DataLoader[Any], name: str) -> None:
        _require_numbers(loader, name)
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._collates = loader.batch_sampler is not None  # otherwise the dataset has batches
        self._sampler: Any = loader.batch_sampler if self._collates else loader.sampler
        self._samplers: list[Any] = [self._sampler, loader.sampler, getattr(self._sampler, "sampler", None)]
        self._length = _length(loader, name)
        self._drawn: tuple[tuple[int, int], Sequence[Any]] | None = None
        self.workers, self.worker_start = loader.num_workers, loader.worker_init_fn
        names = ("timeout", "prefetch_factor", "multiprocessing_context")
        self.worker_options = {each: getattr(loader, each) for each in names}
        self.pins_memory = loader.pin_memory and torch.cuda.is_available()
        self._require_same_order(name)

    def __len__(self) -> int:
        return self._length

    def epoch(self, seed: int, number: int) -> Sequence[Any]:
        if self._drawn is None or self._drawn[0] != (seed, number):
            self._drawn = (seed, number), self._draw(seed, number)
        return self._drawn[1]

    def validation(self, seed: int) -> Sequence[Any]:
        return self.epoch(seed, 0)

    def batch(self, entry: Any) -> Any:
        if not self._collates:
            return self._collate(self._dataset[entry])
        several = getattr(self._dataset, "__getitems__", None)  # as PyTorch's own loader reads them
        return self._collate([self._dataset[row] for row in entry] if several is None else several(entry))

    def _draw(self, seed: int, number: int) -> Sequence[Any]:
        key = f"{seed} {number}"
        generators = [getattr(sampler, "generator", None) for sampler in self._samplers]
        with random_numbers(key, *(each for each in generators if isinstance(each, torch.Generator))):
            for sampler in self._samplers:
                if callable(getattr(sampler, "set_epoch", None)):
                    sampler.set_epoch(number)
            drawn = list(itertools.islice(self._sampler, self._length))
        if not drawn and self._length:
            raise ValueError(f"the sampler of the DataLoader has no batch in epoch {number}; it said {self._length:,}")
        return [*drawn, *itertools.islice(itertools.cycle(drawn), self._length - len(drawn))]

    def _require_same_order(self, name: str) -> None:
        """Of PyTorch's own samplers it is known."""
        own = [each for each in self._samplers if not type(each).__module__.startswith(("torch.", "builtins"))]
        if own and list(map(str, self._draw(0, 0))) != list(map(str, self._draw(0, 0))):
            raise ValueError(
                f"{name} is a DataLoader with the sampler {type(own[0]).__name__}, which gives another order when it "
                "is asked twice with the same seed, so a run could not resume with the same batches: let it draw "
                "from `random`, `numpy.random` or `torch`, or give it a method set_epoch(epoch)"
            )


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
    return SequenceBatches(batches)


@contextmanager
def random_numbers(key: str, *generators: torch.Generator) -> Iterator[None]:
    """Context in which Python, NumPy and PyTorch have the random numbers of this key, on the CPU; then as before.

    Not on a GPU: a worker process may not use it.
    """
    seed = random.Random(key).getrandbits(32)
    several = (torch.default_generator, *generators)
    python, numpy, states = random.getstate(), np.random.get_state(), [each.get_state() for each in several]  # noqa: NPY002
    try:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the global state is what datasets use
        for each in several:
            each.manual_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for each, state in zip(several, states, strict=True):
            each.set_state(state)


def _require_numbers(loader: DataLoader[Any], name: str) -> None:
    kind = type(loader.dataset).__name__
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"{name} is a DataLoader over {kind}, an IterableDataset, whose rows have no numbers, and {NUMBERED}: give "
            f"one over a dataset with __len__ and __getitem__, or list({name}) if all batches fit in memory; a recipe "
            'reads pairs of text that do not, with data.kind = "stream"'
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ValueError(
            f"{name} is of type {type(loader).__name__}, a DataLoader that makes its batches in an __iter__ of its "
            f"own, and {NUMBERED}: give a plain DataLoader over the same dataset, or list({name})"
        )
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                f"{name} has a DistributedSampler, and fit shares the batches among the processes itself: leave the "
                "sampler out, and set shuffle=True instead"
            )


def _length(loader: DataLoader[Any], name: str) -> int:
    try:
        return len(loader)
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            f"{name} is a DataLoader without a length ({error}), and an epoch must have an end: give its dataset or "
            "its sampler a __len__"
        ) from None
