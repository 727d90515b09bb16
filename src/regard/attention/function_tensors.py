"""The tensors that a function uses: in its closure, as globals and defaults, and as attributes of its objects."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Visited = set[tuple[int, frozenset[str], bool]]


def function_tensors(function: Callable[..., Any]) -> list[Tensor]:
    """The tensors that the result of a function may depend on, as far as its code names them.

    Of a module they are its parameters and buffers. Of an object, and of a module that is the `self` in a closure or of
    a bound method, they are the attributes that the code names. Functions that it calls are followed, PyTorch's
    excepted.
    """
    tensors: dict[int, Tensor] = {}
    _collect(function, frozenset(), tensors, set())
    return list(tensors.values())


def _collect(
    x: Any, names: frozenset[str], tensors: dict[int, Tensor], visited: Visited, is_self: bool = False
) -> None:
    """Add the tensors of one object. `names` are those that the code has where it is used, there as `self` or not."""
    if isinstance(x, Tensor):
        tensors[id(x)] = x
        return
    if isinstance(x, MethodType):
        # The function's own names decide which attributes of the object it uses.
        _collect(x.__func__, names, tensors, visited)
        _collect(x.__self__, frozenset(_names(getattr(x.__func__, "__code__", None))), tensors, visited, is_self=True)
        return
    key = id(x), names, is_self
    if key in visited or isinstance(x, _PLAIN):
        return
    visited.add(key)
    if isinstance(x, tuple | list | set | dict):
        for item in x.values() if isinstance(x, dict) else x:
            _collect(item, names, tensors, visited)
    elif isinstance(x, FunctionType):
        if not (x.__module__ or "").startswith("torch."):
            used = frozenset(_names(x.__code__))
            for variable, item in _variables(x, used):
                _collect(item, used, tensors, visited, variable == "self")
    elif isinstance(x, functools.partial):
        for item in (x.func, x.args, x.keywords):
            _collect(item, names, tensors, visited)
    else:
        _collect_attributes(x, names, tensors, visited, is_self)


def _collect_attributes(
    x: Any, names: frozenset[str], tensors: dict[int, Tensor], visited: Visited, is_self: bool
) -> None:
    attributes = dict(getattr(x, "__dict__", {}))
    if isinstance(x, nn.Module):
        for registered in (x.named_parameters(recurse=False), x.named_buffers(recurse=False), x.named_children()):
            attributes |= dict(registered)
    kind: type = type(x)
    methods = _methods(kind)
    named = [attributes[name] for name in names if name in attributes]
    named += [MethodType(methods[name], x) for name in names if name in methods and name not in attributes]
    for item in named:
        _collect(item, names, tensors, visited)
    if isinstance(x, nn.Module):
        if not (is_self and named):  # it may be called as a whole, and the names be those of something else
            tensors.update((id(item), item) for item in (*x.parameters(), *x.buffers()))
    elif not named and "__call__" in methods:
        _collect(MethodType(methods["__call__"], x), names, tensors, visited)


@functools.cache
def _methods(kind: type) -> dict[str, FunctionType]:
    classes = [c for c in reversed(kind.__mro__) if not c.__module__.startswith("torch.")]
    return {name: x for c in classes for name, x in vars(c).items() if isinstance(x, FunctionType)}


def _names(code: CodeType | None) -> Iterator[str]:
    """Globals and attributes that code names, that of functions defined inside it included."""
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _variables(function: FunctionType, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Defaults, globals and the variables of the closure, which alone have names here."""
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "", default
    for name in names:
        if name in function.__globals__:
            yield "", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet


_PLAIN = (int, float, complex, str, bytes, type, type(None))
