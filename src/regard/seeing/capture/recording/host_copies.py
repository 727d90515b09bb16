"""HostCopies: copies from a GPU to the CPU while the GPU goes on computing."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

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
