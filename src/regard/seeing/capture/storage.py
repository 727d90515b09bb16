"""Keeping: where the tensors of a watched call go, and how much of them there may be."""

from __future__ import annotations

import re
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class Keeper:
    """Holds tensors as they are, as copies on the CPU, or in memory-mapped files; counts their bytes.

    Held as they are, tensors cost no time; what is counted is the memory the model would otherwise have freed.
    """

    def __init__(self, where: str | Path | None, limit: str | int | None) -> None:
        self.cpu = where == "cpu"
        self.folder = None if where is None or self.cpu else Path(where)
        if self.folder is not None and not self.folder.parent.is_dir():
            raise ValueError(
                f'keep is "cpu" or a folder to write to; {self.folder} is neither: there is no {self.folder.parent}'
            )
        self.limit = None if limit is None else size(limit)
        self.bytes = 0
        self._storages: set[int] = set()
        self._placed: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}  # of originals that are still alive
        self._count = 0
        self._files: tempfile.TemporaryDirectory[str] | None = None

    @property
    def copies(self) -> bool:
        """Whether what is kept is a copy, which no change in place reaches."""
        return self.cpu or self.folder is not None

    def room(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all of these may be kept; if so they are counted."""
        new = {}
        for x in tensors:
            if self.copies:
                if self._again(x) is None:
                    new[id(x)] = x.nbytes
            elif x.untyped_storage().data_ptr() not in self._storages:
                new[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        total = self.bytes + sum(new.values())
        if self.limit is not None and total > self.limit:
            return False
        self.bytes = total
        if not self.copies:
            self._storages.update(new)
        return True

    def place(self, x: Tensor) -> Tensor:
        """The tensor as it is kept. One that comes again unchanged, as a mask does in every layer, is kept once."""
        if not self.copies:
            return x.detach()
        kept = self._again(x)
        if kept is None:
            kept = x.detach().to("cpu", copy=True) if self.cpu else self._file(x.detach())
            if not x.is_inference():  # these do not count their changes
                at, placed = id(x), self._placed
                placed[at] = weakref.ref(x, lambda _: placed.pop(at, None)), x._version, kept
        return kept

    def _again(self, x: Tensor) -> Tensor | None:
        found = self._placed.get(id(x))
        return found[2] if found is not None and found[0]() is x and found[1] == x._version else None

    def _file(self, x: Tensor) -> Tensor:
        assert self.folder is not None
        if x.numel() == 0:
            return x.cpu()
        if self._files is None:
            self.folder.mkdir(exist_ok=True)
            self._files = tempfile.TemporaryDirectory(prefix="watched-", dir=self.folder)
        self._count += 1
        path = Path(self._files.name) / str(self._count)
        mapped = torch.from_file(str(path), shared=True, size=x.numel(), dtype=x.dtype)
        return mapped.view(x.shape).copy_(x)


def size(given: str | int) -> int:
    """Bytes, from a number or from words such as "8GB"."""
    if isinstance(given, int) and given >= 0:
        return given
    found = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?B?)\s*", str(given).upper())
    if found is None:
        raise ValueError(f'limit is a number of bytes or words such as "8GB" or "500MB", got {given!r}')
    unit = found[2] if found[2].endswith("B") or not found[2] else found[2] + "B"
    return int(float(found[1]) * UNITS[unit])


def words(count: int) -> str:
    """Bytes as a person reads them."""
    for unit in ("TB", "GB", "MB", "KB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.3g} {unit}"
    return f"{count} B"
