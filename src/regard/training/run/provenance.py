"""provenance.json of a run: with what, from what and how it was trained, one entry per session.

A session is one start of the command: the first, and each `--resume`. The file is for people and for the model card;
training reads only which settings a session changed.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...atomic_write import write_text
from ...checksums import sha256
from ...json_file import read_object
from ...redaction import is_secret, redacted

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "provenance.json"
PACKAGES = ("regard", "torch", "pytorch-lightning", "numpy", "tokenizers", "safetensors", "triton")
VARIABLES = ("REGARD_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "SLURM_JOB_ID")
"""Names, or how they begin, of the environment variables that are recorded, without those that hold secrets."""
GIT_SECONDS = 10
"""After which the commit counts as unknown."""


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
        self._values = redacted(self._values)
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
        "variables": {name: value for name, value in sorted(os.environ.items()) if recorded(name)},
    }


def recorded(variable: str) -> bool:
    return variable.startswith(VARIABLES) and not is_secret(variable)


def commit(folder: Path) -> str | None:
    """The commit that is checked out in a folder, if that is in a Git repository of this user.

    `rev-parse` runs nothing that the repository's configuration names (`git status` would: core.fsmonitor).
    """
    command = ["git", "--no-pager", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # no Git, no repository, no commit yet
        return None
    return done.stdout.strip()
