"""The cache: limited by the bytes of its values."""

from __future__ import annotations

from regard.viewer.http.request_computations import LRUCache


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
