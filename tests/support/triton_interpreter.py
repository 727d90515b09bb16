"""Triton kernels without a GPU: they are interpreted, on CPU tensors."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

        splat = interpreter.InterpreterBuilder.create_splat

        def splat_booleans(builder: Any, type: Any, scalar: Any) -> Any:
            # Triton's interpreter calls the result of a comparison of two numbers an int32; splat as such, it makes the
            # mask of a block an int32 too, which version 3.9 refuses. Compiled, it is an int1.
            if scalar.data.dtype == numpy.bool_:
                from triton.language import int1

                scalar = interpreter.TensorHandle(scalar.data, int1)
            return splat(builder, type, scalar)

        patch.setattr(interpreter, "_patch_lang_tensor", with_index)
        patch.setattr(interpreter, "_patch_lang", _once_a_launch(interpreter))
        patch.setattr(interpreter.ReduceOps, "generic_reduce", _reduce_rows)
        patch.setattr(interpreter.InterpreterBuilder, "create_splat", splat_booleans)
        yield


def _once_a_launch(interpreter: Any) -> Callable[[Any], Any]:
    """Triton's language is replaced by the interpreter's once for a kernel, not for each function that it calls."""
    plain, language = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    in_use: set[Any] = set()

    def patch_language(function: Any) -> Any:
        modules = {x for x in function.__globals__.values() if isinstance(x, ModuleType) and x in language}
        if modules <= in_use:
            return interpreter._LangPatchScope()  # nothing to restore
        scope = plain(function)
        if not in_use:  # the kernel itself, which restores the language at its end
            restore = scope.restore
            scope.restore = lambda: (in_use.clear(), restore())
        in_use.update(modules)
        return scope

    return patch_language


def _reduce_rows(reduction: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """tl.reduce along an axis with a function of our own: all rows at once, in the same order along the axis.

    Triton's interpreter calls the function for each number, which was most of the time that the kernels took.
    """
    axis, kinds = reduction.axis, [x.dtype for x in tensors]
    assert axis is not None, "the kernels name the axis they reduce"
    arrays = [numpy.moveaxis(x.handle.data, axis, 0) for x in tensors]
    results = [x[0] for x in arrays]
    for at in range(1, arrays[0].shape[0]):
        pairs = zip((*results, *(x[at] for x in arrays)), (*kinds, *kinds), strict=True)
        results = [x.handle.data for x in reduction.combine_fn.fn(*(reduction.to_tensor(*pair) for pair in pairs))]
    if reduction.keep_dims:
        results = [numpy.expand_dims(x, axis) for x in results]
    return [reduction.to_tensor(*pair) for pair in zip(results, kinds, strict=True)]
