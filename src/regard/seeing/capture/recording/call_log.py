"""CallLog: the calls of modules that are known, as lists of references. All else is decided when somebody asks.

A module is known once a call of it was captured, and it left its output unchanged. What then runs at each of its calls
is one list that is appended to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....attention.tensor_versions import version_of
from ..call_inputs_and_output import some_rows
from . import key_growth

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ..call_inputs_and_output import Record
    from .captured_call import CapturedCall

WHOLE_OUTPUTS = 1 << 26
"""Outputs of this many bytes, all together, are held as they are until somebody asks. Of further ones rows are copied
at once, which takes a kernel for each call."""
COPIED = -1
"""In place of the version counter of an output whose rows were copied."""

MODULE, MAKE, Q, K, V, OUT, ROWS, MASK, STATE = range(9)
"""Where a logged call has the id of its module, the function that makes its record, and its tensors."""
Q_VERSION, K_VERSION, V_VERSION, OUT_VERSION, MASK_VERSION = range(9, 14)
"""The version counters of these tensors at the call; None for an inference tensor."""
SETTINGS, DETAILS = range(14, 16)
"""See `CapturedCall`."""
PREVIOUS, CAPTURED = range(16, 18)
"""The logged call whose keys the keys of this one begin with, or None; and the `CapturedCall` that was made of it."""

LoggedCall = list[Any]
UNKNOWN: LoggedCall = []
"""In place of a call that came before: whether there was one, only a comparison of keys can tell."""


class CallLog:
    """The calls of one watch, in order, from all threads. `list.append` needs no lock."""

    __slots__ = ("entries", "largest_output", "last", "mask_bytes", "room")

    def __init__(self, known: dict[int, LoggedCall | None]) -> None:
        """`known` has the ids of modules whose calls can be logged. It is copied."""
        self.entries: list[LoggedCall] = []
        self.last = known.copy()
        """The last call of each known module. An entry is added when a module becomes known."""
        self.largest_output = WHOLE_OUTPUTS // max(len(known), 1)
        """Outputs of the first call of each module, if no larger than this, are held as they are."""
        self.room = WHOLE_OUTPUTS
        """Bytes that are left for outputs of further calls."""
        self.mask_bytes = 0
        """Of the masks of all calls. A mask that several calls share is counted several times."""

    def take(self) -> list[tuple[LoggedCall, LoggedCall]]:
        """All calls, which are then no longer here, each with a copy that other threads leave as it is.

        Keys and values that were left out are views of later ones.
        """
        while True:
            entries = self.entries[:]
            for entry in reversed(entries):
                _restore_keys(entry)
            copies = [entry[:] for entry in entries]
            # Another thread may have logged a call just now, after which keys were left out.
            if not any(type(entry[K]) is int for entry in copies):
                del self.entries[: len(entries)]
                return list(zip(entries, copies, strict=True))

    def hold_output(self, entry: LoggedCall) -> None:
        """Hold the output of a further call as it is, if there is room; otherwise some of its rows."""
        if entry[OUT_VERSION] is not COPIED:
            self.room -= entry[OUT].nbytes
            if self.room < 0:
                keep_some_rows(entry)

    def close(self) -> None:
        """At the end of the watch: no call will follow, and the last ones need not be held."""
        self.last = {}


def _restore_keys(entry: LoggedCall) -> None:
    """Keys and values of the call before are the first ones of this call."""
    previous = entry[PREVIOUS]
    if previous is not None and type(previous[K]) is int and type(entry[K]) is not int:
        keys = previous[K]
        previous[V], previous[V_VERSION] = entry[V].narrow(-2, 0, keys), entry[V_VERSION]
        previous[K_VERSION] = entry[K_VERSION]
        previous[K] = entry[K].narrow(-2, 0, keys)


def relation_to_last(last: LoggedCall, query: Tensor, key: Tensor, value: Tensor) -> LoggedCall | None:
    """The last call of the same module if the keys begin with those of that call; None if they do not; or UNKNOWN."""
    old_k, old_v = last[K], last[V]
    if key is old_k and value is old_v:
        return None  # a buffer that is filled in place: to hold it twice takes no more memory
    length = key.size(-2)
    if length > 1 and length == query.size(-2):
        return None
    growth = key_growth.take()
    if growth is not None:
        versions = last[K_VERSION], last[V_VERSION]
        if key_growth.has_grown(growth, key, value, old_k, old_v, versions):
            return last
    return UNKNOWN


def leave_out_keys(previous: LoggedCall) -> None:
    """After a call whose keys begin with those of this one was logged: only their number is kept."""
    keys = previous[K]
    if type(keys) is not int:
        previous[K], previous[V] = keys.size(-2), None


def keep_some_rows(entry: LoggedCall) -> None:
    """Keep a copy of some rows of the output instead of the whole."""
    entry[ROWS], entry[OUT] = some_rows(entry[OUT])
    entry[OUT_VERSION] = COPIED


def entry_without_versions(
    module: int | None,
    make: Callable[[CapturedCall], Record],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    mask: Tensor | None,
    state: Tensor | None,
    settings: tuple[Any, ...],
    details: Any,
    previous: LoggedCall | None,
) -> LoggedCall:
    """A call with inference tensors, which have no version counter: rows of its output are copied."""
    versions = [None if x is None else version_of(x) for x in (q, k, v, out, mask)]
    entry = [module, make, q, k, v, out, None, mask, state, *versions, settings, details, previous, None]
    keep_some_rows(entry)
    return entry
