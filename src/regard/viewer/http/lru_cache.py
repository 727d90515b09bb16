"""A thread-safe LRU cache that is limited by the bytes of its values."""

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
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Store a value of `size` bytes; one larger than the whole cache is not stored."""
        if size > self.limit:
            return
        with self._lock:
            self._remove(key)
            self._entries[key] = value, size
            self.bytes += size
            while self.bytes > self.limit:
                self._remove(next(iter(self._entries)))

    def remove(self, matches: Callable[[Any], bool]) -> None:
        """Remove all entries whose key matches."""
        with self._lock:
            for key in [key for key in self._entries if matches(key)]:
                self._remove(key)

    def _remove(self, key: Hashable) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]

    def __len__(self) -> int:
        return len(self._entries)
