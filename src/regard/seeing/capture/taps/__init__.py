"""Taps: where attention calls are recorded. Each is one function of somebody else's, stood in for while anyone watches.

A tap calls the function it stands for with what it was given and returns what that returned. While nobody watches, the
originals are back in place.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ....attention import listeners
from .. import dispatch
from . import attend_tap, flex_tap, huggingface_tap, multihead_tap, sdpa_tap, softmax_tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Place = tuple[Any, str]
    """An object and the name under which it holds a function."""

_lock = threading.RLock()
_installed = 0
_before: list[tuple[Any, str, Any, Any]] = []  # object, name, what stood there, what stands there now
_stands_for: dict[int, Any] = {}  # by identity: what a file holds may not be hashable. `_before` keeps them alive
_ABSENT = object()


def install(model: nn.Module | None = None) -> None:
    """Put the taps in place, also where the files of the model's classes imported a function by name."""
    global _installed
    with _lock:
        there = len(_before)
        try:
            if _installed == 0:
                for module in (sdpa_tap, multihead_tap, flex_tap, huggingface_tap, softmax_tap):
                    for (home, name), tapped in module.places():
                        _put(home, name, _over(getattr(home, name), tapped))
            for home in [] if model is None else _files(model):
                for name, value in list(vars(home).items()):
                    if id(value) in _stands_for:
                        _put(home, name, _stands_for[id(value)])
        except BaseException:
            _take_back(there)
            raise
        if _installed == 0:
            listeners.listeners.append(attend_tap.attended)
        _installed += 1


def remove() -> None:
    global _installed
    with _lock:
        _installed -= 1
        if _installed == 0:
            _take_back(0)
            listeners.listeners.remove(attend_tap.attended)


def _over(original: Any, tapped: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def tap(*args: Any, **kwargs: Any) -> Any:
        if not dispatch.listening():
            return original(*args, **kwargs)
        return tapped(original, *args, **kwargs)

    return tap


def _put(home: Any, name: str, new: Any) -> None:
    old = vars(home).get(name, _ABSENT)  # a method may be inherited
    known = getattr(home, name)
    setattr(home, name, new)
    _before.append((home, name, old, new))
    _stands_for.setdefault(id(known), new)


def _take_back(there: int) -> None:
    """Undo all but the first `there` of what was put in place."""
    while len(_before) > there:
        home, name, old, new = _before.pop()
        # Somebody may have put a function of theirs over ours; ours, with nobody watching, only passes on.
        if vars(home).get(name) is not new:
            continue
        if old is _ABSENT:
            delattr(home, name)
        else:
            setattr(home, name, old)
    if not there:
        _stands_for.clear()


def _files(model: nn.Module) -> list[ModuleType]:
    """The modules of the packages the model's classes come from, less those of PyTorch, Transformers and ours."""
    packages = {type(part).__module__.split(".")[0] for part in model.modules()} - {"torch", "transformers", "regard"}
    files = [(name, file) for name, file in list(sys.modules.items()) if isinstance(file, ModuleType)]
    return [file for name, file in files if name.partition(".")[0] in packages]
