"""Patching: replaces the functions that taps see while a watch or an ablation is open, and restores them afterwards.

A replacement calls the original with the arguments it got and returns its result.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from .. import call_routing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..module_depth import Parts


class Replacement(NamedTuple):
    """`owner.name` becomes a function that calls `function(original, *args, **kwargs)`."""

    owner: Any
    name: str
    function: Callable[..., Any]
    is_active: Callable[[], bool] | None = call_routing.is_active
    """Whether a call made now is passed to `function`. None: `function(original)` returns what `owner.name` becomes,
    which asks for itself. It saves a Python call in functions that every layer calls."""


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Tap:
    """What a tap sees, in words for messages, and how it is put in place."""

    sees: str
    replacements: Callable[[], Iterable[Replacement]] = tuple
    model_replacements: Callable[[Parts], Iterable[Replacement]] = lambda _: ()
    """Those in the classes of a model's modules."""
    on_install: Callable[[], None] = _nothing
    on_remove: Callable[[], None] = _nothing
    on_watch: Callable[[], None] = _nothing
    """Called whenever a watch opens."""
    on_close: Callable[[], None] = _nothing
    """Called whenever a watch closes, before its model is forgotten."""


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    after: Any


_ABSENT = object()


_lock = threading.RLock()
_install_count = 0
_patches: list[_Patch] = []
_replaced_by: dict[int, Any] = {}  # by id, since values may not be hashable; `_patches` keeps them alive
_tapped: set[int] = set()  # ids of functions that replace those of a model's classes


class PatchPlan(NamedTuple):
    """What is patched for a model beside what is patched for all."""

    replacements: list[Replacement]
    packages: list[str]
    """Those that define the model's classes: their Python modules may have imported a function by name."""


def plan(parts: Parts) -> PatchPlan:
    """The plan for a model, without the packages of PyTorch, Transformers and regard, which import none by name."""
    packages = {type(part).__module__.partition(".")[0] for _, part in parts} - {"torch", "transformers", "regard"}
    replacements = [replacement for tap in _taps() for replacement in tap.model_replacements(parts)]
    return PatchPlan(replacements, sorted(packages))


def install(plan: PatchPlan | None = None) -> None:
    """Put all taps in place, also where Python modules of the packages of a model's parts imported one by name."""
    global _install_count
    with _lock:
        before = len(_patches)
        try:
            if _install_count == 0:
                for tap in _taps():
                    for owner, name, function, is_active in tap.replacements():
                        _patch(owner, name, _wrap(getattr(owner, name), function, is_active))
            if plan is not None:
                _install_plan(plan)
        except BaseException:
            _restore(before)
            raise
        if _install_count == 0:
            for tap in _taps():
                tap.on_install()
        _install_count += 1


def _install_plan(plan: PatchPlan) -> None:
    for owner, name, function, is_active in plan.replacements:
        original = getattr(owner, name)
        if id(original) not in _tapped:  # a class may be that of two models
            # A cached function of a module would keep the module alive.
            wrap = _wrap.__wrapped__ if isinstance(owner, nn.Module) else _wrap
            after = wrap(original, function, is_active)
            _patch(owner, name, after)
            _tapped.add(id(after))
    if plan.packages:
        for module in _python_modules(plan.packages):
            for name, value in list(vars(module).items()):
                if id(value) in _replaced_by:
                    _patch(module, name, _replaced_by[id(value)])


def remove() -> None:
    """Undo one `install`; the last one restores the original functions."""
    global _install_count
    with _lock:
        _install_count -= 1
        if _install_count == 0:
            _restore(0)
            for tap in _taps():
                tap.on_remove()


def on_watch() -> None:
    """Tell the taps that a watch opens."""
    for tap in _taps():
        tap.on_watch()


def on_close() -> None:
    """Tell the taps that a watch closes, before its model is forgotten."""
    for tap in _taps():
        tap.on_close()


def _taps() -> tuple[Tap, ...]:
    from . import TAPS

    return TAPS


@functools.lru_cache(maxsize=256)
def _wrap(original: Any, function: Callable[..., Any], is_active: Callable[[], bool] | None) -> Any:
    tapped = function(original) if is_active is None else _guarded(original, function, is_active)
    functools.update_wrapper(tapped, original)
    tapped.is_tap = True
    return tapped


def _guarded(original: Any, function: Callable[..., Any], is_active: Callable[[], bool]) -> Any:
    def tapped(*args: Any, **kwargs: Any) -> Any:
        if not is_active():
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    return tapped


def _patch(owner: Any, name: str, after: Any) -> None:
    before = vars(owner).get(name, _ABSENT)  # a method may be inherited
    original = getattr(owner, name)
    setattr(owner, name, after)
    _patches.append(_Patch(owner, name, before, after))
    _replaced_by.setdefault(id(original), after)


def _restore(count: int) -> None:
    """Undo all but the first `count` patches."""
    while len(_patches) > count:
        owner, name, before, after = _patches.pop()
        # If other code has replaced our function since, leave theirs; ours, if they call it, only calls the original.
        if vars(owner).get(name) is not after:
            continue
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    if not count:
        _replaced_by.clear()
        _tapped.clear()


def _python_modules(packages: list[str]) -> list[ModuleType]:
    """The Python modules of these packages."""
    return [module for package in packages for module in _modules_of_package(package, len(sys.modules))]


@functools.lru_cache(maxsize=64)
def _modules_of_package(package: str, loaded: int) -> list[ModuleType]:
    """Those loaded; `loaded`, how many there are of any package, makes the cache forget when one is added."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in modules if name.partition(".")[0] == package]
