"""The cache: limited by the bytes of its values."""

from __future__ import annotations

import threading

import pytest

from regard.viewer import guard
from regard.viewer.jobs import HIGH, LRUCache, QueueFull, Worker


def test_the_least_recently_used_is_removed_beyond_the_limit() -> None:
    cache: LRUCache[str] = LRUCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"  # the most recently used: b is evicted first
    cache.put("c", "C", 5)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.bytes) == ("A", None, "C", 9)
    cache.put("d", "D", 11)
    assert cache.get("d") is None
    cache.put("a", "AA", 5)
    assert cache.bytes == 10
    cache.remove(lambda key: key == "a")
    assert (cache.get("a"), cache.get("c"), cache.bytes) == (None, "C", 5)


def test_a_full_queue_refuses_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WAITING", 3)
    worker, go = Worker("test"), threading.Event()
    first = worker.submit(go.wait)
    while not first.running():
        pass
    waiting = [worker.submit(lambda: 1) for _ in range(3)]
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        worker.submit(lambda: 1)
    assert waiting[1].cancel()
    assert worker.waiting == 2
    assert worker.submit(lambda: 2, HIGH).cancel()  # a cancelled job takes no place in the queue
    last = worker.submit(lambda: 3)
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        worker.submit(lambda: 1)
    go.set()
    assert (waiting[0].result(5), waiting[2].result(5), last.result(5)) == (1, 1, 3)
    worker.close()
