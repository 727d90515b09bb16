"""What checkpoints/ of a run holds beside last.ckpt: weight snapshots; and the random state that last.ckpt holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...atomic_write import replacing_file
from ...checksums import sha256
from ...json_file import DamagedFileError
from ...models.weight_snapshots import snapshot_file, snapshot_files, snapshot_update

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from torch import Tensor

    Weights = dict[str, Tensor]

ANEW = "restore it from a copy, or train anew with --force (in Python with force=True)"
"""What to do about a damaged checkpoint of a run."""


class WeightSnapshots:
    """checkpoints/update-N.safetensors for the last `window` of them, and best-N.safetensors.

    Averaging the weights of the last checkpoints costs nothing at decoding time and gains what an ensemble gains
    (Vaswani et al. 2017, section 6.1).
    """

    def __init__(self, folder: Path, window: int) -> None:
        self.folder, self.window = folder, window
        self._digests: dict[str, str] = {}  # SHA-256 of the files, by name

    @property
    def updates(self) -> list[int]:
        """The updates that the average is over."""
        return [snapshot_update(file) for file in self._window()]

    def take(self, update: int, weights: Weights) -> None:
        """Older ones stay until `forget`: the checkpoints before may still refer to them."""
        self._write(snapshot_file(self.folder, "update", update), weights)

    def take_best(self, update: int, weights: Weights) -> None:
        """As `take`, of the weights with the best score so far."""
        self._write(snapshot_file(self.folder, "best", update), weights)

    def digests(self, best: int) -> dict[str, str]:
        """The SHA-256 of what a checkpoint refers to: the window, and the best, which is of update `best`."""
        bests = (file for file in snapshot_files(self.folder, "best") if snapshot_update(file) == best)
        files = [*self._window(), *bests]
        return {file.name: self._digests.setdefault(file.name, sha256(file)) for file in files}

    def forget(self, after: int, best: int, needed: Collection[str] = ()) -> None:
        """Remove what a checkpoint of update `after`, with its best at `best`, does not refer to; `needed` stays."""
        kept = {file.name for file in self._window(after)} | set(needed)
        kept.add(snapshot_file(self.folder, "best", best).name)
        for file in (*snapshot_files(self.folder, "update"), *snapshot_files(self.folder, "best")):
            if file.name not in kept:
                file.unlink()
                self._digests.pop(file.name, None)

    def average(self, updates: list[int]) -> Weights:
        """The mean of the weights after these updates, summed in float64, one file at a time."""
        files = [snapshot_file(self.folder, "update", update) for update in updates]
        total: Weights = {}
        for file in files:
            for name, tensor in _load(file).items():
                wide = tensor.double() if tensor.is_floating_point() else tensor
                total[name] = total[name] + wide if name in total and tensor.is_floating_point() else wide
        kinds = {name: tensor.dtype for name, tensor in _load(files[-1]).items()}
        return {n: (t / len(files)).to(kinds[n]) if t.is_floating_point() else t for n, t in total.items()}

    def best(self) -> Weights:
        return _load(snapshot_files(self.folder, "best")[-1])

    def _window(self, after: int | None = None) -> list[Path]:
        """The last of those taken, up to update `after`."""
        files = snapshot_files(self.folder, "update")
        return [file for file in files if after is None or snapshot_update(file) <= after][-self.window :]

    def _write(self, path: Path, weights: Weights) -> None:
        from safetensors.torch import save_file

        # The format does not allow tensors that share memory: the metadata names the one a tied table is equal to.
        names: dict[object, str] = {}
        firsts = {name: names.setdefault(_memory(tensor), name) for name, tensor in weights.items()}
        tied = {name: first for name, first in firsts.items() if name != first}
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items() if name not in tied}
        with replacing_file(path) as unfinished:
            save_file(stored, unfinished, tied)
            self._digests[path.name] = sha256(unfinished)


def _load(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as opened:
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return weights | {name: weights[first] for name, first in (opened.metadata() or {}).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}; {ANEW}") from None


def on_cpu(weights: Weights) -> Weights:
    """The weights on the CPU. Those that share memory share it there too: a tied table is moved once."""
    moved: dict[object, Tensor] = {}
    for tensor in weights.values():
        if _memory(tensor) not in moved:
            moved[_memory(tensor)] = tensor.detach().cpu()
    return {name: moved[_memory(tensor)] for name, tensor in weights.items()}


def _memory(tensor: Tensor) -> object:
    """Equal for tensors that are the same numbers in memory. Tensors without numbers are all different."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


def size(weights: Weights) -> int:
    """The size of a snapshot in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def rng_state() -> dict[str, Any]:
    """The state of every random number generator, as plain numbers and tensors: a checkpoint pickles no objects."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  the global state is what others use
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_rng_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
