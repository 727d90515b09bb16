"""CapturedCall: what a tap keeps of a call while the model runs. The record is made of it when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ....attention.tensor_versions import version_of
from ..call_inputs_and_output import some_rows
from . import key_growth
from .call_log import COPIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int
    from torch import Tensor

    from ..call_inputs_and_output import Record
    from .call_log import LoggedCall
    from .key_growth import KeyGrowth


class CapturedCall:
    """References to the tensors of a call without their graph, and how often each was changed.

    `settings` are equal for calls that may be steps of one generation; None if only their records can tell. `details`
    is anything else that `make` needs. `learned` are further tensors that the weights depend on. `out` is the whole
    output until `copy_rows`.
    """

    _fixed_versions: tuple[int | None, ...]
    key_versions: tuple[int | None, int | None]
    out_version: int | None
    rows: Int[Tensor, " rows"] | None
    """The queries that `out` belongs to, once the others are left out."""
    __slots__ = (
        "_fixed_versions", "address", "details", "k", "key_versions", "keys", "learned", "make", "mask", "out",
        "out_version", "q", "queries", "rows", "settings", "state", "v",
    )  # fmt: skip

    def __init__(
        self,
        make: Callable[[CapturedCall], Record],
        q: Float[Tensor, "*batch q d"],
        k: Float[Tensor, "*batch_k k d"],
        v: Float[Tensor, "*batch_k k d_v"],
        out: Float[Tensor, "*batch q d_v"],
        mask: Tensor | None = None,
        state: Tensor | None = None,
        learned: tuple[Tensor, ...] = (),
        settings: tuple[Any, ...] | None = None,
        details: Any = None,
    ) -> None:
        # Every line here runs once for each call of a watched model, and is written for speed.
        self.make, self.settings, self.details = make, settings, details
        if out.requires_grad or q.requires_grad or k.requires_grad or v.requires_grad:
            q, k, v, out = q.detach(), k.detach(), v.detach(), out.detach()
            state = None if state is None else state.detach()
        self.q, self.k, self.v, self.out, self.state = q, k, v, out, state
        self.mask = mask.detach() if mask is not None and mask.requires_grad else mask
        self.queries, self.keys, self.learned = q.size(-2), k.size(-2), learned
        self.address = out.data_ptr()
        try:
            self.key_versions, self.out_version = (k._version, v._version), out._version
            self._fixed_versions = tuple([x._version for x in self._fixed()])
        except RuntimeError:  # an inference tensor has no version counter
            self._fixed_versions = tuple([version_of(x) for x in self._fixed()])
            self.key_versions, self.out_version = (version_of(k), version_of(v)), version_of(out)

    @classmethod
    def of_logged(cls, entry: LoggedCall) -> CapturedCall:
        """The same of a call that was logged."""
        call = cls.__new__(cls)
        (
            _, call.make, call.q, call.k, call.v, call.out, call.rows, call.mask, call.state,
            q_version, k_version, v_version, call.out_version, mask_version,
            call.settings, call.details, _, _,
        ) = entry  # fmt: skip
        if call.q.requires_grad or call.k.requires_grad or call.v.requires_grad:  # their call had no graph
            call.q, call.k, call.v = call.q.detach(), call.k.detach(), call.v.detach()
        if call.mask is not None and call.mask.requires_grad:
            call.mask = call.mask.detach()
        call.queries, call.keys, call.address = call.q.size(-2), call.k.size(-2), call.out.data_ptr()
        call.key_versions = k_version, v_version
        fixed: list[int | None] = [q_version]
        if call.state is not None:  # nobody but the kernel has it
            fixed.append(version_of(call.state))
        if call.mask is not None:
            fixed.append(mask_version)
        call._fixed_versions, call.learned = tuple(fixed), ()
        return call

    def logged(self, module: int) -> LoggedCall:
        """This call as one that was logged before; its keys and those of the next logged call are compared by `is`."""
        versions = None, *self.key_versions, None, None
        return [module, self.make, None, self.k, self.v, None, None, None, None, *versions, None, None, None, self]

    def copy_rows(self) -> None:
        """Keep a copy of some rows of the output instead of the whole."""
        if self.out_version != COPIED:
            self.rows, self.out = some_rows(self.out)
            self.out_version = COPIED

    def _fixed(self) -> list[Tensor]:
        """What the weights depend on, without keys and values."""
        return [x for x in (self.q, self.state, self.mask, *self.learned) if x is not None]

    def tensors(self) -> list[Tensor]:
        """Everything that is held, without the rows of the output."""
        return [*self._fixed(), self.k, self.v]

    def record(self) -> Record:
        """The record, which says whether a tensor was changed in place since the call."""
        out_changed = self.out_version not in (COPIED, version_of(self.out))
        self.copy_rows()
        record = self.make(self)
        record.out_changed = out_changed
        record.changed = self._fixed_versions != tuple([version_of(x) for x in self._fixed()])
        record.key_versions = self.key_versions
        return record


class CapturedSteps:
    """Calls of one module whose keys contain those of the call before: only the newest keys and values are kept.

    Usually a single call. A key/value cache that is copied to a longer tensor at every step, or slides, makes more.
    """

    __slots__ = ("_left", "ablated", "calls", "name", "total")
    _left: tuple[tuple[Tensor, Tensor], ...]
    """Keys and values that a sliding cache no longer has."""

    def __init__(self, name: str, call: CapturedCall, ablated: str) -> None:
        self.name, self.ablated, self.calls, self._left = name, ablated, [call], ()
        self.total = call.keys
        """The number of keys of all calls."""

    def may_continue(self, call: CapturedCall) -> bool:
        """Whether the call may be a step after these, by its lengths alone."""
        return call.keys > call.queries or (call.queries == 1 and call.keys == self.total)

    def shares_keys(self, call: CapturedCall) -> bool:
        """Whether keys and values begin at the same place in memory: then keeping the call takes no more of it."""
        last = self.calls[-1]
        return call.k.data_ptr() == last.k.data_ptr() and call.v.data_ptr() == last.v.data_ptr()

    def has_grown(self, call: CapturedCall, growth: KeyGrowth | None) -> bool:
        """Whether a cache made the keys and values of the call from those of the last one."""
        last = self.calls[-1]
        return growth is not None and key_growth.has_grown(growth, call.k, call.v, last.k, last.v, last.key_versions)

    def append(self, call: CapturedCall, trusted: bool, grown: bool = False) -> bool | None:
        """Append the call if its keys are those of the last call, without the first ones, and those of new queries.

        The first and the last common row are compared, unless the call is trusted, or its keys are known to begin with
        those of the last call: `grown`. None if more must be compared.
        """
        last, old = self.calls[-1], call.keys - call.queries
        left = last.keys - old
        if old <= 0 or left < 0 or not _same_kind(self.calls[0], call):
            return None
        if grown and left == 0:
            trusted = True
        elif call.queries == 1 and call.keys == self.total and _same_rows(last, call, (last.keys - 1, call.keys - 1)):
            return None  # perhaps unchanged keys of another sequence
        if not trusted and not _same_rows(last, call, (left, 0), (last.keys - 1, old - 1)):
            return False
        if left:
            self._left += ((last.k.narrow(-2, 0, left).clone(), last.v.narrow(-2, 0, left).clone()),)
        last.k = last.v = None  # type: ignore[assignment]
        self.calls.append(call)
        self.total += call.queries
        return True

    def keys_and_values(self) -> tuple[Tensor, Tensor]:
        """All keys and values."""
        last = self.calls[-1]
        if not self._left:
            return last.k, last.v
        k, v = zip(*self._left, (last.k, last.v), strict=True)
        return torch.cat(k, dim=-2), torch.cat(v, dim=-2)

    def records(self, k: Tensor, v: Tensor) -> list[tuple[int, Record]]:
        """Records of all calls, each with its first key; `k` and `v` are all keys and values."""
        records, total = [], self.calls[0].keys
        for at, call in enumerate(self.calls):
            total += call.queries if at else 0
            first = total - call.keys
            call.k, call.v = k.narrow(-2, first, call.keys), v.narrow(-2, first, call.keys)
            records.append((first, call.record()))
        return records


def _same_kind(a: CapturedCall, b: CapturedCall) -> bool:
    """Whether two calls are of the same function with the same settings and shapes but for their lengths."""
    return (
        a.settings is not None
        and a.make is b.make
        and a.settings == b.settings
        and _adds(a.mask) == _adds(b.mask)
        and a.q.shape[:-2] == b.q.shape[:-2]
        and a.q.shape[-1] == b.q.shape[-1]
    )


def _adds(mask: Tensor | None) -> bool:
    """Whether it is a bias: numbers that are added, not booleans."""
    return mask is not None and mask.dtype != torch.bool


def _same_rows(a: CapturedCall, b: CapturedCall, *rows: tuple[int, int]) -> bool:
    """Whether these rows of keys and values of two calls are equal."""
    if a.k.shape[:-2] != b.k.shape[:-2] or a.k.shape[-1] != b.k.shape[-1] or a.v.shape[-1] != b.v.shape[-1]:
        return False
    pairs = [(x.select(-2, i), y.select(-2, j)) for x, y in ((a.k, b.k), (a.v, b.v)) for i, j in rows]
    if a.k.is_cuda:  # every comparison waits for the GPU: one for all
        first, second = (torch.cat([x.flatten() for x in side]) for side in zip(*pairs, strict=True))
        return torch.equal(first, second)
    return all(torch.equal(x, y) for x, y in pairs)
