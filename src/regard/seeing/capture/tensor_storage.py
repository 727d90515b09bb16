"""Storage: where the tensors of recorded calls are kept (in place, on the CPU, in files), and their memory limit."""

from __future__ import annotations

import re
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .recording.host_copies import HostCopies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


class TensorStorage:
    """Keeps tensors by reference, as copies on the CPU, or in memory-mapped files, and counts their bytes.

    References take no time; what is counted is the memory that the model could otherwise free.
    """

    def __init__(self, where: str | Path | None, limit: str | int | None) -> None:
        self.cpu, self.values = where == "cpu", where != "qk"
        """`values`: whether values are kept; without them a call is proved at once."""
        self.folder = None if where is None or self.cpu or not self.values else Path(where)
        if self.folder is not None and not self.folder.parent.is_dir():
            raise ValueError(
                f'keep is "cpu", "qk" or a folder to write to; {self.folder} cannot be made: there is no '
                f"{self.folder.parent}"
            )
        self.copies = self.cpu or self.folder is not None
        """Whether tensors are copied, so that in-place changes do not reach them."""
        self.limit = None if limit is None else parse_bytes(limit)
        self.bytes = 0
        self._storages: set[int] = set()
        self._copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}  # of originals that are still alive
        self._host_copies = HostCopies()
        self._count = 0
        self._files: tempfile.TemporaryDirectory[str] | None = None

    def reserve(self, tensors: Iterable[Tensor]) -> bool:
        """Whether all of these fit into the limit; if so, their bytes are counted."""
        new = {}
        for x in tensors:
            if self.copies:
                if self._copy_of(x) is None:
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

    def store(self, x: Tensor, wait: bool = True) -> Tensor:
        """The tensor as it is kept. A tensor stored again unchanged, like the mask of all layers, is copied once.

        Without `wait`, a copy from a GPU has its numbers after `wait_for_copies`, and the model does not wait for it.
        """
        if not self.copies:
            return x.detach()
        kept = self._copy_of(x)
        if kept is None:
            if self.cpu and x.is_cuda and not wait:
                kept = self._host_copies.copy(x)
            else:
                kept = x.detach().to("cpu", copy=True) if self.cpu else self._file(x.detach())
            if not x.is_inference():  # inference tensors have no version counter
                key, copies = id(x), self._copies
                copies[key] = weakref.ref(x, lambda _: copies.pop(key, None)), x._version, kept
        return kept

    def wait_for_copies(self) -> None:
        self._host_copies.wait()

    def _copy_of(self, x: Tensor) -> Tensor | None:
        """The copy of this tensor, if it was stored and has not changed since."""
        original, version, copy = self._copies.get(id(x), (None, None, None))
        return copy if original is not None and original() is x and version == x._version else None

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


def parse_bytes(size: str | int) -> int:
    """The number of bytes, from a number or a string such as "8GB"."""
    if isinstance(size, int) and size >= 0:
        return size
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?B?)\s*", str(size).upper())
    if match is None:
        raise ValueError(f'limit is a number of bytes or a string such as "8GB" or "500MB", got {size!r}')
    unit = match[2] if match[2].endswith("B") or not match[2] else match[2] + "B"
    return int(float(match[1]) * UNITS[unit])


def format_bytes(count: int) -> str:
    """A number of bytes with its unit: "1.5 GB"."""
    for unit in ("TB", "GB", "MB", "KB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.3g} {unit}"
    return f"{count} B"
