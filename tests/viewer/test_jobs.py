"""The cache: limited by the bytes of its values; the worker: short jobs first, cancelled ones never."""

from __future__ import annotations

import threading

from regard.viewer.jobs import HIGH, Cache, Worker


def test_the_least_recently_used_is_removed_beyond_the_limit() -> None:
    cache = Cache(10)
    cache.put(("a",), "A", 4)
    cache.put(("b",), "B", 4)
    assert cache.get(("a",)) == "A"  # the most recently used: b is evicted first
    cache.put(("c",), "C", 5)
    assert (cache.get(("a",)), cache.get(("b",)), cache.get(("c",)), cache.bytes) == ("A", None, "C", 9)
    cache.put(("d",), "D", 11)
    assert cache.get(("d",)) is None
    cache.put(("a",), "AA", 5)
    assert cache.bytes == 10
    cache.remove_trace("a")
    assert (cache.get(("a",)), cache.get(("c",)), cache.bytes) == (None, "C", 5)


def test_urgent_jobs_come_first_and_cancelled_ones_never() -> None:
    worker, go, order = Worker("test"), threading.Event(), list[str]()
    worker.submit(go.wait)
    worker.submit(lambda: order.append("a"))
    worker.submit(lambda: order.append("b"))
    worker.submit(lambda: order.append("urgent"), HIGH)
    left = worker.submit(lambda: order.append("left"))
    assert left.cancel()
    go.set()
    worker.submit(int).result(5)
    assert order == ["urgent", "a", "b"]
    assert worker.waiting == 0
    worker.close()
