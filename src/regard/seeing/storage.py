"""HostCopies: copies from a GPU to the CPU while the GPU goes on computing."""

from __future__ import annotations

import re
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..attention.masks import Mask, causal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Bool, Int
    from torch import Tensor

    from ..attention.blocks import Batch
    from ..attention.masks import Interval

MOST = 1 << 31
"""Bytes that may wait on the GPU for their copy; beyond, the caller waits for the oldest."""


class HostCopies:
    """Copies to page-locked memory on a stream of their own. A copy has its numbers after `wait`.

    The model may change a tensor in place before it was copied, so a clone is copied: within the GPU that takes a
    hundredth of the time.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._waiting: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = 0

    def copy(self, x: Tensor) -> Tensor:
        """A tensor on the CPU that has the numbers of x after `wait`."""
        while self._waiting and self._bytes + x.nbytes > MOST:
            self._wait_for_oldest()
        host = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=True)
        stream = self._streams.get(x.device)
        if stream is None:
            stream = self._streams[x.device] = torch.cuda.Stream(x.device)
        source = x.detach().clone(memory_format=torch.contiguous_format)
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            host.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        source.record_stream(stream)  # its memory is not used again before the copy is done
        self._waiting.append((event, x.nbytes))
        self._bytes += x.nbytes
        return host

    def wait(self) -> None:
        """Wait for all copies."""
        while self._waiting:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        event, size = self._waiting.popleft()
        event.synchronize()
        self._bytes -= size


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


class Intervals(Mask):
    """start_i ≤ j < stop_i: the keys that each step sees in a growing key/value cache.

    The same for every entry and head, [T_q], or different in the first leading dimensions, [B, T_q].
    """

    def __init__(self, start: Int[Tensor, "*batch q"], stop: Int[Tensor, "*batch q"]) -> None:
        self.start, self.stop = start.long(), stop.long()

    def check(self, batch: tuple[int, ...], queries: int, keys: int) -> None:
        if self.start.shape[-1] != queries:
            raise ValueError(f"intervals for {self.start.shape[-1]} queries, there are {queries}")

    def _of(self, batch: Batch, i: Tensor) -> Interval:
        at = (*batch[: self.start.dim() - 1], i)
        return self.start.to(i.device)[at], self.stop.to(i.device)[at]

    def __call__(self, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
        start, stop = self._of(batch, i)
        return (start <= j) & (j < stop)

    def bounds(self, batch: Batch, i: Tensor, keys: int) -> Interval | None:
        start, stop = self._of(batch, i)
        return start.clamp(0, keys), stop.clamp(0, keys)

    def __repr__(self) -> str:
        return f"Intervals({self.start.shape[-1]} queries)"

    def example(self) -> tuple[tuple[int, ...], int, int]:
        return tuple(self.start.shape[:-1]), self.start.shape[-1], int(self.stop.max())


def intervals_of(mask: Bool[Tensor, "*batch q k"]) -> Mask | None:
    """The same mask by two numbers per query; None if some query sees no key, or keys with a gap between them.

    Also None if heads have masks of their own.
    """
    if mask.dim() > 4 or (mask.dim() == 4 and mask.shape[1] > 1) or (mask.dim() == 3 and mask.shape[0] > 1):
        return None
    seen = mask[:, 0] if mask.dim() == 4 else mask.reshape(1, *mask.shape[-2:])
    keys = seen.shape[-1]
    count = seen.sum(-1)
    start = seen.to(torch.uint8).argmax(-1)
    last = keys - 1 - seen.flip(-1).to(torch.uint8).argmax(-1)
    if not bool(((count > 0) & (last - start + 1 == count)).all()):
        return None
    start, stop = start.cpu(), (last + 1).cpu()
    if len(start) == 1:
        simplest = intervals(start[0], stop[0], keys)
        return Intervals(start[0], stop[0]) if simplest is None else simplest
    return Intervals(start, stop)


def intervals(start: Int[Tensor, " q"], stop: Int[Tensor, " q"], keys: int) -> Mask | None:
    """The simplest equal mask: None if every query sees all keys, `causal` if it is causal."""
    if bool((start == 0).all()):
        if bool((stop >= keys).all()):
            return None
        offset = int(stop[0]) - 1
        if torch.equal(stop, torch.arange(len(stop)) + 1 + offset):
            return causal(offset)
    return Intervals(start, stop)
