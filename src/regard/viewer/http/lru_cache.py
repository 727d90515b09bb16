"""LRUCache: answers kept to be given again, the least recently wanted dropped first, counted in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

V = TypeVar("V")


class LRUCache(Generic[V]):
    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep it, unless it is larger than all there may be."""
        if size > self.limit:
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = value, size
            self.bytes += size
            while self.bytes > self.limit:
                self._drop(next(iter(self._kept)))

    def drop(self, which: Callable[[Any], bool]) -> None:
        """All with such keys."""
        with self._lock:
            for key in [key for key in self._kept if which(key)]:
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self.bytes -= found[1]

    def __len__(self) -> int:
        return len(self._kept)
