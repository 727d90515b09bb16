"""checkpoints/checksums.json: what each of the last checkpoints consists of, and which of them can be resumed from.

A checkpoint is a file of everything that `--resume` needs, the snapshots of weights that it refers to, and the lines
that metrics.csv had. The last two are kept, as last.ckpt and previous.ckpt. The manifest has the SHA-256 of each part
and is written before a new checkpoint takes its place, so that it describes whichever of them a power cut leaves.
Its copy, checksums.copy.json, is read where the manifest itself is damaged or missing: whole checkpoints stay usable.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...checksums import CHECKSUMS, check_file, read_list, sha256, write_list
from ...json_file import DamagedFileError
from .checkpoints import ANEW
from .metrics_file import MetricsMark, check_mark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .run_folder import Run

COPY = "checksums.copy.json"
KEPT = 3
"""Entries of the manifest: the new checkpoint and the two before it."""
NEEDED = ("state_dict", "optimizer_states", "global_step", "regard")
"""What last.ckpt holds at least."""
WITHOUT = "resume without comparing checksums"


@dataclass(frozen=True)
class CheckpointEntry:
    """The parts of one checkpoint: SHA-256 of its file and of its snapshots, and how far metrics.csv went."""

    update: int
    sha256: str
    snapshots: dict[str, str]
    metrics: MetricsMark | None


class CheckpointManifest:
    """The manifest of a run."""

    def __init__(self, run: Run) -> None:
        self.run, self.file, self.copy = run, run.checkpoints / CHECKSUMS, run.checkpoints / COPY
        self._last_is_whole = True  # a damaged last.ckpt must not take the place of the one before

    def replace(self, new: Path, update: int, snapshots: dict[str, str], metrics: MetricsMark | None) -> None:
        """Enter a checkpoint that is written but not in its place, and make last.ckpt the previous one."""
        # Those of this update and later are of a checkpoint that training did not resume from.
        entries = [entry for entry in self._entries() if entry.update < update]
        if not entries and self._last_is_whole and self.run.last.is_file():  # of an earlier version
            entries = [CheckpointEntry(checkpoint_update(self.run.last), sha256(self.run.last), {}, None)]
        entry = CheckpointEntry(update, sha256(new), snapshots, metrics)
        values = [asdict(each) for each in [*entries, entry][-KEPT:]]
        for file in (self.file, self.copy):
            write_list(file, {"checkpoints": values})
        if self.run.last.exists() and self._last_is_whole:
            self.run.last.replace(self.run.previous)
        self._last_is_whole = True

    def needed(self, update: int) -> set[str]:
        """The snapshots that the last two checkpoints up to this update refer to."""
        entries = [entry for entry in self._entries() if entry.update <= update]
        return {name for entry in entries[-2:] for name in entry.snapshots}

    def resumable(self, say: Callable[[str], None]) -> tuple[Path, CheckpointEntry | None] | None:
        """The newest checkpoint that is whole, with its entry; says what is wrong with a newer one.

        None if there is no checkpoint. The entry is None in a run that an earlier version began.
        """
        problems: list[str] = []
        entries = self._entries(say)
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
            if problems:
                say(f"resuming from the checkpoint before, {file}")
            self._last_is_whole = not problems
            if entry is not None and not self.run.metrics.exists():
                say(f"{self.run.metrics} is missing: a new one begins after update {entry.update:,}")
            return file, entry
        if problems:
            raise DamagedFileError("; ".join(dict.fromkeys(problems)))
        return None

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
                check_file(self.run.checkpoints / name, expected, ANEW)
            if entry.metrics is not None:
                check_mark(self.run.metrics, entry.metrics)
        checkpoint_update(file)
        return entry

    def _entries(self, say: Callable[[str], None] = lambda problem: None) -> list[CheckpointEntry]:
        """The entries of the manifest; none where neither it nor its copy exists.

        A manifest that is damaged or missing is written anew from its copy.
        """
        has_copy = self.copy.is_file()
        if not has_copy and not self.file.is_file():
            return []
        try:
            return _read(self.file, f"its copy {self.copy} is used" if has_copy else f"remove it to {WITHOUT}")
        except DamagedFileError as error:
            if not has_copy:
                raise
            entries = _read(self.copy, f"so is {self.file}; remove both to {WITHOUT}")
            say(str(error))
            write_list(self.file, {"checkpoints": [asdict(entry) for entry in entries]})
            return entries


def _read(file: Path, advice: str) -> list[CheckpointEntry]:
    if not file.is_file():
        raise DamagedFileError(f"{file} is missing; {advice}")
    values = read_list(file, advice).get("checkpoints")
    try:
        return [_entry(each) for each in values]  # type: ignore[union-attr]
    except (TypeError, AttributeError, KeyError, ValueError):
        raise DamagedFileError(f"{file} is damaged: it does not list checkpoints; {advice}") from None


def _entry(values: dict[str, Any]) -> CheckpointEntry:
    metrics = values["metrics"]
    mark = None if metrics is None else MetricsMark(int(metrics["bytes"]), str(metrics["sha256"]))
    return CheckpointEntry(int(values["update"]), str(values["sha256"]), dict(values["snapshots"]), mark)


def checkpoint_update(file: Path) -> int:
    """The update of a checkpoint."""
    return int(read_checkpoint(file)["global_step"])


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
