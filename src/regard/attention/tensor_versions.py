"""Whether tensors that are kept by reference were changed in place since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class ChangedInPlaceError(RuntimeError):
    """A tensor that a result depends on was changed in place, so the result can no longer be computed."""


class TensorVersions:
    """The version counters of some tensors at one moment. Inference tensors have none, and count as unchanged."""

    def __init__(self, tensors: Iterable[Tensor], versions: Iterable[int | None] | None = None) -> None:
        """`versions` are those of an earlier moment; by default it is now."""
        self.tensors = list(tensors)
        if versions is not None:
            self._versions = list(versions)
        elif torch.compiler.is_compiling():
            self._versions = [None] * len(self.tensors)
        else:
            self._versions = [None if x.is_inference() else x._version for x in self.tensors]

    def require_unchanged(self, consequence: str) -> None:
        """Raise where one of the tensors was changed; `consequence` says what cannot be computed then."""
        if self.changed():
            raise ChangedInPlaceError(
                "queries, keys, values, the mask or a tensor that the energy or normalizer uses was changed in place "
                f"since attend() was called, {consequence}"
            )

    def changed(self) -> bool:
        return any(version != version_of(x) for x, version in zip(self.tensors, self._versions, strict=True))


def version_of(x: Tensor) -> int | None:
    """The version counter of a tensor: how often it was changed in place. None for an inference tensor."""
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version
