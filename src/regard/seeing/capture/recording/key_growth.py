"""KeyGrowth: the keys and values that a cache made last, and those it made them from."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class KeyGrowth(NamedTuple):
    """`k` and `v` begin with the rows of older keys and values. No tensor is kept alive."""

    k: weakref.ref[Tensor]
    v: weakref.ref[Tensor]
    versions: tuple[int, int]
    """Their version counters when they were made."""
    old_ids: tuple[int, int]
    """The ids of the older ones, for comparison with tensors that somebody holds."""
    old_versions: tuple[int, int]


class _Latest(threading.local):
    growth: KeyGrowth | None = None


_latest = _Latest()


def note(k: Tensor, v: Tensor, old_ids: tuple[int, int], old_versions: tuple[int, int]) -> None:
    """A cache of this thread made `k` and `v` from older ones: their rows, and new rows after these."""
    versions = k._version, v._version
    _latest.growth = KeyGrowth(weakref.ref(k), weakref.ref(v), versions, old_ids, old_versions)


def take() -> KeyGrowth | None:
    """What was noted last in this thread, once."""
    growth, _latest.growth = _latest.growth, None
    return growth
