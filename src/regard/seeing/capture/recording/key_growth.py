"""KeyGrowth: the keys and values that a cache made last, and those it made them from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    KeyGrowth = tuple[tuple[Tensor, Tensor], Tensor, Tensor]
    """Keys and values that begin with the rows of older keys and values; then the older ones."""


class _Latest:
    """Of all threads. One that finds what another wrote compares rows instead: tensors are compared by `is`."""

    __slots__ = ("growth",)

    def __init__(self) -> None:
        self.growth: KeyGrowth | None = None


latest = _Latest()


def take() -> KeyGrowth | None:
    """What a cache wrote last, once: the tensors are not held any longer."""
    growth, latest.growth = latest.growth, None
    return growth


def has_grown(
    growth: KeyGrowth, k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor, versions: tuple[int | None, int | None]
) -> bool:
    """Whether a cache made `k` and `v` from these older ones, as they were at `versions`.

    A version counter only grows: the older ones are unchanged until now if it is what it was, and the new ones are as
    the cache made them if it is 0.
    """
    (new_k, new_v), from_k, from_v = growth
    if new_k is not k or new_v is not v or from_k is not old_k or from_v is not old_v:
        return False
    try:
        return k._version == 0 == v._version and (old_k._version, old_v._version) == versions
    except RuntimeError:  # an inference tensor has no version counter
        return False
