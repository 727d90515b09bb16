"""A cache of small results by key: bounds of masks and the key blocks that are visible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

R = TypeVar("R")


def cached_result(key: Hashable | None, make: Callable[[], R]) -> R:
    """What `make` returns, kept under the key where there is one: every layer of a model has the same mask."""
    if key is None:
        return make()
    result: R | None = _results.get(key)
    if result is None:
        result = make()
        if len(_results) >= RESULTS:  # another thread may do so at any time
            _results.clear()
        _results[key] = result
    return result


_results: dict[Hashable, Any] = {}

RESULTS = 64
"""How many results are kept before all are dropped; each is a few numbers per query."""
