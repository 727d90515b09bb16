"""data/stream_files.json of a run: the files that its stream was read from, or the commit of its dataset.

Positions in a stream (`stream_positions.py`) are numbers of blocks. They hold only as long as the files are the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...atomic_write import write_text
from ...json_file import read_object
from ..preparation.corpus_paths import folder
from ..preparation.recipe_corpus import corpus_parts, dataset_split

if TYPE_CHECKING:
    from ..recipe.data_section import StreamData

NAME = "stream_files.json"


@dataclass(frozen=True)
class StreamFiles:
    """For each file below `data.root`, its size and time of modification; for a dataset of the Hub, its commit.

    Empty where the Hub did not say the commit: nothing is then compared.
    """

    stamps: dict[str, str]

    @classmethod
    def of(cls, data: StreamData) -> StreamFiles:
        root = folder(data.root)
        if data.dataset:
            split = dataset_split(data, "train")
            if not Path(split.name).is_dir():
                commit = split.commit()
                return cls({data.dataset: commit} if commit else {})
            paths = [Path(split.name)]
        else:
            paths = [Path(file) for part in corpus_parts(data, "train") for file in part.files]
        files = sorted({file for path in paths for file in _files(path)})
        return cls({_name(file, root): _stamp(file) for file in files})

    @property
    def hash(self) -> str:
        """What positions refer to; "" where nothing is known."""
        content = json.dumps(self.stamps, sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()[:16] if self.stamps else ""

    def record(self, file: Path) -> None:
        """Add them to those that the run has read so far, under their hash."""
        versions = read_object(file, f"remove {file}") if file.is_file() else {}
        if self.stamps and self.hash not in versions:
            write_text(file, json.dumps({**versions, self.hash: self.stamps}, indent=1) + "\n")

    def changes(self, file: Path, former: str) -> str:
        """The names that are new, missing or changed since the files had the hash `former`."""
        stamps = (read_object(file, f"remove {file}") if file.is_file() else {}).get(former, {})
        names = sorted(name for name in {**stamps, **self.stamps} if stamps.get(name) != self.stamps.get(name))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _name(file: Path, root: Path) -> str:
    """Relative to the root, so that a corpus can move to another folder."""
    return (file.relative_to(root) if file.is_relative_to(root) else file).as_posix()


def _stamp(file: Path) -> str:
    stat = file.stat()
    return f"{stat.st_size} bytes, {stat.st_mtime_ns}"
