"""Hugging Face Transformers' growing key/value cache: which keys and values are older ones with new rows after them.

Otherwise rows have to be compared at every generated token, for which a GPU must finish all that was launched before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..recording import key_growth
from .patching import Replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor


def cache_replacements() -> Iterator[Replacement]:
    """The cache's method that appends rows."""
    caches = sys.modules.get("transformers.cache_utils")  # imported if there is a Transformers model
    layer = getattr(caches, "DynamicLayer", None)
    update = None if layer is None else vars(layer).get("update")
    # Not one that other code put in its place: it may change older rows, to quantize or to evict them.
    if layer is not None and getattr(update, "__globals__", None) is vars(caches):
        yield Replacement(layer, "update", _tapped_update, is_active=None)


def _tapped_update(original: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`update` appends rows to `keys` and `values`, and returns both."""

    def update(self: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        old_k, old_v = getattr(self, "keys", None), getattr(self, "values", None)
        result = original(self, *args, **kwargs)
        if old_k is not None and old_v is not None:
            key_growth.latest.growth = result, old_k, old_v
        return result

    return update
