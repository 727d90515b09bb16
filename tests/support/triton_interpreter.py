"""Triton kernels without a GPU: they are interpreted, on CPU tensors."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = torch.cuda.is_available()


def skip_without_triton() -> None:
    # Looked for, not imported: Triton must be imported inside `interpreted` to be interpreted.
    if find_spec("triton") is None:
        pytest.skip("the kernels are written in Triton, which is not installed", allow_module_level=True)


@contextmanager
def interpreted() -> Iterator[None]:
    """Import kernels inside it, and run them inside it; with a GPU it does nothing.

    Triton decides when it decorates a function, its own among them, whether that will be interpreted.
    """
    if GPU:
        yield
        return
    with pytest.MonkeyPatch.context() as patch, numpy.errstate(all="ignore"):  # ∞ − ∞ in rows that are never stored
        patch.setenv("TRITON_INTERPRET", "1")
        from triton.runtime import interpreter

        plain = interpreter._patch_lang_tensor

        def with_index(tensor: type, scope: Any) -> None:
            # Triton's interpreter turns arrays of one number into range() bounds by int(), which NumPy 2.4 refuses.
            plain(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

        patch.setattr(interpreter, "_patch_lang_tensor", with_index)
        yield
