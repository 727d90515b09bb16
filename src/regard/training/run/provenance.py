"""provenance.json of a run: with what, from what and how it was trained, one entry per session.

A session is one start of the command: the first, and each `--resume`. The file is for people and for the model card;
training reads only which settings a session changed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ...checksums import sha256
from ...json_file import read_object

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "provenance.json"
PACKAGES = ("regard", "torch", "pytorch-lightning", "numpy", "tokenizers", "safetensors", "triton")
VARIABLES = ("REGARD_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "SLURM_JOB_ID")
"""Names, or how they begin, of the environment variables that are recorded; others may hold secrets."""
COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
"""A commit by its SHA-1 or SHA-256."""
LARGEST = 2**24
"""Bytes of a file of Git's that are read at most; packed-refs has a line for each branch and tag."""


class Provenance:
    """The record of a run. `data` and `init` have the SHA-256 of the files that it was trained from."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._values = read_object(self.file, "remove it") if self.file.is_file() else {"sessions": []}

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return [each for each in self._values.get("sessions", []) if isinstance(each, dict)]

    def begin_session(self, update: int, changed: dict[str, list[Any]]) -> None:
        """Add a session that starts after this update; `changed` has the old and the new value of each setting."""
        session = {
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "after_update": update,
            "command": command(),
            "changed": changed,
            "versions": versions(),
            "commit": commit(Path.cwd()),
            "environment": environment(),
        }
        self._values["sessions"] = [*self.sessions, session]
        self._write()

    def record_files(self, key: str, files: Iterable[Path], root: Path) -> None:
        """The SHA-256 of files, by their path below `root`."""
        self._values[key] = {
            (file.relative_to(root) if file.is_relative_to(root) else file).as_posix(): sha256(file) for file in files
        }
        self._write()

    def record_dataset(self, name: str, revision: str) -> None:
        """A dataset that is streamed, with its commit; "" where that is not known."""
        self._values["dataset"] = {"name": name, "revision": revision}
        self._write()

    def settings_at(self, update: int) -> dict[str, Any]:
        """The values at the checkpoint of this update, of the settings that sessions begun after it have changed."""
        former: dict[str, Any] = {}
        for session in self.sessions:
            if session["after_update"] >= update:
                former = {key: old for key, (old, _) in session["changed"].items()} | former
        return former

    def card(self) -> str:
        """The lines of the model card: command, versions, commit and checksums."""
        if not self.sessions:
            return ""
        lines = []
        for session in self.sessions:
            if session["after_update"] == 0 or session["changed"]:
                lines.append(f"    {session['command']}\n")
        last = self.sessions[-1]
        made = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        lines.append(f"Versions: {made}." + (f" Commit {last['commit'][:12]}." if last["commit"] else ""))
        if dataset := self._values.get("dataset"):
            lines.append(f"\nDataset: `{dataset['name']}`, revision {dataset['revision'] or 'not known'}.")
        for key, heading in (("data", "Data"), ("init", "Started from")):
            files = self._values.get(key) or {}
            lines += [f"\n{heading} (SHA-256):\n"] if files else []
            lines += [f"- `{name}` {digest[:16]}…" for name, digest in files.items()]
        return "\n".join(lines)

    def _write(self) -> None:
        write_text(self.file, json.dumps(self._values, indent=1, ensure_ascii=False) + "\n")


def command() -> str:
    """The command as it was typed, or the program that called `fit`."""
    program = Path(sys.argv[0]).name
    return shlex.join(["regard" if program in ("regard", "__main__.py") else program, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide results, those that are installed."""
    import torch

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def environment() -> dict[str, Any]:
    import torch

    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def commit(folder: Path) -> str | None:
    """The commit that is checked out where the command was run, if that is a Git repository.

    Read from Git's files: `git` itself would execute what the repository's configuration names. The repository may be
    anybody's, so only the digits of a commit are returned, never other contents of a file that it refers to.
    """
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.is_file():  # of a worktree: "gitdir: FOLDER"
                git = place / _read(git).removeprefix("gitdir:").strip()
            if (git / "HEAD").is_file():
                digits = _commit(git)
                return digits if digits and COMMIT.fullmatch(digits) else None
    except (OSError, ValueError):  # not readable, not UTF-8, too large, or a path with a null byte
        return None
    return None


def _commit(git: Path) -> str | None:
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    if not name.startswith("refs/") or ".." in name:  # Git allows no other names
        return None
    common = git / "commondir"  # a worktree keeps its branches in the main repository
    for folder in (git, git / _read(common).strip() if common.is_file() else git):
        if (folder / name).is_file():
            return _read(folder / name).strip()
        packed = folder / "packed-refs"
        for line in _read(packed).splitlines() if packed.is_file() else []:
            if line.endswith(f" {name}"):
                return line.split()[0]
    return None


def _read(file: Path) -> str:
    with file.open("rb") as handle:
        contents = handle.read(LARGEST + 1)
    if len(contents) > LARGEST:
        raise ValueError(f"{file} has more than {LARGEST:,} bytes")
    return contents.decode()
