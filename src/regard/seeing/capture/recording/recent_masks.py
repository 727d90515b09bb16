"""The masks that a thread saw last, as intervals: all layers of a model usually share one mask."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ....attention.tensor_versions import version_of
from ..call_inputs_and_output import Record, with_short_masks

if TYPE_CHECKING:
    from torch import Tensor

    from ....attention import Mask


class _RecentMasks(threading.local):
    """The intervals of the masks that this thread saw last: all layers of a model usually share one mask."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Mask | None]] = {}
        self._versions: dict[int, int | None] = {}

    def shorten(self, record: Record) -> Record:
        """The record with masks of T_q × T_k numbers as two numbers per query, where these are equal."""
        valid = {
            key: entry
            for key, entry in self._known.items()
            if version_of(entry[0]) == self._versions[key] is not None  # an inference tensor may have changed
        }
        record = with_short_masks(record, valid)
        self._known = dict(list(valid.items())[-4:])
        self._versions = {key: version_of(x) for key, (x, _) in self._known.items()}
        return record

    def clear(self) -> None:
        self._known.clear()
        self._versions.clear()


_recent_masks = _RecentMasks()
shorten_masks = _recent_masks.shorten
forget_masks = _recent_masks.clear
