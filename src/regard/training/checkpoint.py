"""Checkpoints of a run: two of them, whole or not at all; the weights of the last updates; and metrics.csv.

A checkpoint is a file of everything that `--resume` needs (weights, moments, random states, the standing of the
validations), the snapshots of weights that it refers to, and the lines that metrics.csv had. The last two are kept, as
last.ckpt and previous.ckpt. checkpoints/checksums.json has the SHA-256 of each part, and is written before a new
checkpoint takes its place, so that it describes whichever of them a power cut leaves.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from ..files import (
    CHECKSUMS,
    DamagedFileError,
    append_text,
    check_file,
    make_folder,
    read_list,
    replacing_file,
    sha256,
    sync,
    write_bytes,
    write_list,
    write_text,
)
from ..models.saved_weights import snapshot_file, snapshot_files, snapshot_update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from ..models.saved_weights import Kind
    from .run_folder import Run

    Weights = dict[str, Tensor]

NEEDED = ("state_dict", "optimizer_states", "global_step", "regard")
"""What last.ckpt holds at least."""
KEPT = 3
"""Entries of checksums.json: the new checkpoint and the two before it."""
SHARDS = "shards-"
"""How the folders begin in which each process of a sharded run writes its part."""
ANEW = "restore it from a copy, or train anew with --force (in Python with force=True)"
"""What to do about a damaged checkpoint of a run."""
MEASURES = (
    "update",
    "epoch",
    "loss",  # what is minimised: smoothed, per target token
    "nll",  # −log p per target token
    "rate",
    "tokens_per_second",  # target tokens
    "valid_nll",
)
"""Columns of metrics.csv; the last one is what the task's validation measures."""


@dataclass(frozen=True)
class MetricsMark:
    """How much of metrics.csv belongs to a checkpoint, and its SHA-256."""

    bytes: int
    sha256: str


class MetricsFile:
    """metrics.csv: what training measured, a line at a time, without gaps or repeats after an interruption."""

    def __init__(self, path: Path, last: str) -> None:
        self.path, self.columns = path, (*MEASURES, last)

    def begin(self, update: int, mark: MetricsMark | None = None) -> None:
        """Drop the lines that an interrupted run wrote past its last checkpoint."""
        if mark is not None and self.path.exists():
            write_bytes(self.path, _marked(self.path, mark))
            return
        kept = []
        if update and self.path.exists():  # from update 0 everything is measured again, also what is before update 1
            text = self.path.read_bytes().replace(b"\0", b"").decode("utf-8", errors="replace")
            rows = csv.reader(io.StringIO(text, newline=""))
            kept = [row for row in rows if len(row) == len(self.columns) and row[0].isdecimal()]
        lines = io.StringIO()
        csv.writer(lines).writerows([self.columns, *(row for row in kept if int(row[0]) <= update)])
        write_text(self.path, lines.getvalue())

    def write(self, values: Mapping[str, int | float]) -> None:
        line = io.StringIO()
        csv.DictWriter(line, self.columns).writerow(dict(values))
        append_text(self.path, line.getvalue())

    def mark(self) -> MetricsMark:
        """Flush the lines to the disk: a checkpoint that is written after this can rely on them."""
        sync(self.path)
        content = self.path.read_bytes()
        return MetricsMark(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class CheckpointEntry:
    """The parts of one checkpoint: SHA-256 of its file and of its snapshots, and how far metrics.csv went."""

    update: int
    sha256: str
    snapshots: dict[str, str]
    metrics: MetricsMark | None


class Checkpoints:
    """The folder checkpoints/ of a run.

    update-N.safetensors are the weights of the last `window` saved updates, best-N.safetensors those of the best
    validation. Averaging the last checkpoints costs nothing at decoding time and gains what an ensemble gains (Vaswani
    et al. 2017, section 6.1).
    """

    def __init__(self, run: Run, window: int) -> None:
        self.run, self.folder, self.window = run, run.checkpoints, window
        self.file = self.folder / CHECKSUMS
        self._digests: dict[str, str] = {}  # SHA-256 of snapshots, by name
        self._last_is_whole = True  # a damaged last.ckpt must not take the place of the one before

    # Checkpoints

    def save(self, update: int, state: dict[str, Any], best: int, shards: Mapping[str, str], mark: MetricsMark) -> None:
        """Write the checkpoint of an update, whose best snapshot is of update `best`; the last one is the previous.

        `shards` has the SHA-256 of what other processes have written. What neither this checkpoint nor the one before
        refers to is removed afterwards.
        """
        with replacing_file(self.run.last) as unfinished:
            self.write(state, unfinished)
            # Entries of this update and later are of a checkpoint that training did not resume from.
            entries = [entry for entry in self._entries() if entry.update < update]
            entries.append(CheckpointEntry(update, sha256(unfinished), {**self._snapshots(best), **shards}, mark))
            write_list(self.file, {"checkpoints": [asdict(entry) for entry in entries[-KEPT:]]})
            if self.run.last.exists() and self._last_is_whole:
                self.run.last.replace(self.run.previous)
            self._last_is_whole = True
        self.forget(update, best)

    def write(self, state: dict[str, Any], file: Path) -> None:
        torch.save(state, file)

    def resumable(self, say: Callable[[str], None]) -> tuple[Path, CheckpointEntry | None] | None:
        """The newest checkpoint that is whole, with its entry; says what is wrong with a newer one.

        None if there is no checkpoint. The entry is None where there are no checksums.
        """
        problems: list[str] = []
        entries = self._entries()
        for file in (self.run.last, self.run.previous):
            if not file.exists():
                continue
            try:
                entry = self._check(file, entries)
            except DamagedFileError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                say(problem)
            if not self.run.last.exists():  # removed, or a power cut came between two renames
                say(f"{self.run.last}, the newest checkpoint, is missing")
            if file == self.run.previous:
                say(f"resuming from the checkpoint before, {file}")
            self._last_is_whole = not problems
            if entry is not None and not self.run.metrics.exists():
                say(f"{self.run.metrics} is missing: a new one begins after update {entry.update:,}")
            return file, entry
        if problems:
            raise DamagedFileError("; ".join(dict.fromkeys(problems)))
        return None

    def forget(self, update: int, best: int) -> None:
        """Remove what the last two checkpoints up to this update, with their best at `best`, do not refer to."""
        entries = [entry for entry in self._entries() if entry.update <= update]
        kept = {name for entry in entries[-2:] for name in entry.snapshots}
        folders = {name.split("/")[0] for name in kept}
        for folder in self.folder.glob(f"{SHARDS}*"):
            if folder.name not in folders:
                shutil.rmtree(folder)
        kept |= {file.name for file in self._window(update)} | {snapshot_file(self.folder, "best", best).name}
        for file in (*snapshot_files(self.folder, "update"), *snapshot_files(self.folder, "best")):
            if file.name not in kept:
                file.unlink()
                self._digests.pop(file.name, None)

    def _check(self, file: Path, entries: list[CheckpointEntry]) -> CheckpointEntry | None:
        entry = None
        if entries:
            digest = sha256(file)
            entry = next((each for each in entries if each.sha256 == digest), None)
            if entry is None:
                raise DamagedFileError(
                    f"{file} is damaged: its SHA-256 is {digest[:12]}…, which {self.file} does not list; {ANEW}"
                )
            for name, expected in entry.snapshots.items():
                check_file(self.folder / name, expected, ANEW)
            if entry.metrics is not None:
                _marked(self.run.metrics, entry.metrics)
        read_checkpoint(file)
        return entry

    def _entries(self) -> list[CheckpointEntry]:
        if not self.file.is_file():
            return []
        advice = "remove it to resume without comparing checksums"
        values = read_list(self.file, advice).get("checkpoints")
        try:
            return [_entry(each) for each in values]  # type: ignore[union-attr]
        except (TypeError, AttributeError, KeyError, ValueError):
            raise DamagedFileError(f"{self.file} is damaged: it does not list checkpoints; {advice}") from None

    # Snapshots of weights

    @property
    def updates(self) -> list[int]:
        """The updates that the average is over."""
        return [snapshot_update(file) for file in self._window()]

    def take(self, update: int, weights: Weights, kind: Kind = "update") -> None:
        """Keep the weights of an update; `kind` is "best" for those with the best score so far.

        Older ones stay until `forget`: the checkpoints before may still refer to them.
        """
        from safetensors.torch import save_file

        # The format does not allow tensors that share memory: the metadata names the one a tied table is equal to.
        names: dict[object, str] = {}
        firsts = {name: names.setdefault(_memory(tensor), name) for name, tensor in weights.items()}
        tied = {name: first for name, first in firsts.items() if name != first}
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items() if name not in tied}
        path = snapshot_file(self.folder, kind, update)
        with replacing_file(path) as unfinished:
            save_file(stored, unfinished, tied)
            self._digests[path.name] = sha256(unfinished)

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

    def _snapshots(self, best: int) -> dict[str, str]:
        """The SHA-256 of what a checkpoint refers to: the window, and the best, which is of update `best`."""
        bests = (file for file in snapshot_files(self.folder, "best") if snapshot_update(file) == best)
        files = [*self._window(), *bests]
        return {file.name: self._digests.setdefault(file.name, sha256(file)) for file in files}


def read_checkpoint(file: Path) -> dict[str, Any]:
    """What a checkpoint holds. What is not one is an error that names the file; nothing in it is executed."""
    try:
        checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged files make torch.load raise almost anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DamagedFileError(f"{file} is not a checkpoint that can be read: {reason}; {ANEW}") from None
    missing = [name for name in NEEDED if not isinstance(checkpoint, dict) or name not in checkpoint]
    if missing:
        raise DamagedFileError(f"{file} is not a checkpoint of regard: it has no {missing[0]}; {ANEW}")
    return checkpoint


def on_cpu(weights: Weights) -> Weights:
    """The weights on the CPU. Those that share memory share it there too: a tied table is moved once."""
    moved: dict[object, Tensor] = {}
    for tensor in weights.values():
        if _memory(tensor) not in moved:
            moved[_memory(tensor)] = tensor.detach().cpu()
    return {name: moved[_memory(tensor)] for name, tensor in weights.items()}


def random_states() -> dict[str, Any]:
    """The state of every random number generator, as plain numbers and tensors: a checkpoint pickles no objects."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  the global state is what others use
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_states(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def _entry(values: dict[str, Any]) -> CheckpointEntry:
    metrics = values["metrics"]
    mark = None if metrics is None else MetricsMark(int(metrics["bytes"]), str(metrics["sha256"]))
    return CheckpointEntry(int(values["update"]), str(values["sha256"]), dict(values["snapshots"]), mark)


def _marked(path: Path, mark: MetricsMark) -> bytes:
    """The content of metrics.csv that belongs to a checkpoint; a file that was removed has nothing to check."""
    content = path.read_bytes()[: mark.bytes] if path.exists() else b""
    if path.exists() and hashlib.sha256(content).hexdigest() != mark.sha256:
        raise DamagedFileError(
            f"{path} is damaged: its first {mark.bytes:,} bytes are not those that were written; restore it from a "
            "copy, or remove it to continue without its lines so far"
        )
    return content


def _load(path: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as opened:
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return weights | {name: weights[first] for name, first in (opened.metadata() or {}).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}; {ANEW}") from None


def _memory(tensor: Tensor) -> object:
    """Equal for tensors that are the same numbers in memory. Tensors without numbers are all different."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else id(tensor)


# Sharded models


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def copy_whole(model: nn.Module, whole: nn.Module) -> None:
    """Copy the weights of a sharded model into one that is whole. Every process must call this."""
    to = whole.state_dict()
    for name, tensor in model.state_dict().items():
        to[name].copy_(_whole(tensor))


def whole_weights(model: nn.Module, *, keep: bool) -> tuple[dict[str, Tensor], bool]:
    """The state dict with whole tensors on the CPU, and whether all of its numbers are finite.

    Every process must call this. Only those with `keep` get the tensors. Names of one parameter share one tensor.
    """
    names: dict[str, str] = {}  # name → the first name of the same parameter
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    weights: dict[str, Tensor] = {}
    finite = True
    for name, tensor in model.state_dict().items():
        if names.get(name, name) != name:
            continue
        whole = _whole(tensor)
        finite = finite and bool(whole.isfinite().all())
        if keep:
            weights[name] = whole.detach().cpu().clone()
    if keep:
        weights |= {name: weights[other] for name, other in names.items()}
    return weights, finite


def save_shards(checkpoints: Path, update: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Write weights and moments into checkpoints/shards-N/, each process its part; the SHA-256 of every file.

    `torch.distributed.checkpoint` writes and reads them, so that another number of processes can resume. Its own format
    has pickled metadata; safetensors has none, and nothing in a checkpoint is executed. The folder becomes part of a
    checkpoint when last.ckpt and checksums.json name it, after all of it is on the disk. Every process calls this.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    folder, rank = checkpoints / f"{SHARDS}{update:08d}", distributed.get_rank()
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        make_folder(folder)
    distributed.barrier()
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _shard_errors(folder):
        save(_sharded_tensors(model, optimizer), storage_writer=writer)
    written = {f"{folder.name}/{file.name}": sha256(file) for file in folder.glob(f"shard-{rank + 1:05d}-*")}
    sync(folder)
    parts: list[dict[str, str]] = [{}] * distributed.get_world_size()
    distributed.all_gather_object(parts, written)
    return {name: digest for part in parts for name, digest in part.items()}


def load_shards(checkpoints: Path, update: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read what `save_shards` wrote, perhaps with another number of processes. Every process calls this."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            step = torch.zeros((), device=parameter.device if group["fused"] else "cpu")
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": step, **moments}
    folder = checkpoints / f"{SHARDS}{update:08d}"
    with _shard_errors(folder):
        load(_sharded_tensors(model, optimizer), storage_reader=HuggingFaceStorageReader(str(folder)))


@contextmanager
def _shard_errors(folder: Path) -> Iterator[None]:
    """PyTorch's error names what failed on each process, but is no `Exception`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        reasons = "; ".join(f"process {rank}: {failure[0]}" for rank, failure in error.failures.items())
        raise OSError(f"{folder} could not be written or read: {reasons}") from error


def _sharded_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters, buffers and moments by name. A tied table has one name: its first."""
    parameters = dict(model.named_parameters())
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict()
    tensors = {f"model.{name}": state[name] for name in state if name in parameters or name not in every}
    for name, parameter in parameters.items():
        for part, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{part}"] = value
    return tensors
