"""Dispatch: passes each attention call that a tap sees to the watches of the model that made it.

Patching: replaces the functions that taps see while a watch or an ablation is open, and restores them afterwards.

A replacement calls the original with the arguments it got and returns its result.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from .call import Call
    from .interventions import ModelIntervention
    from .modules import Parts
    from .taps_written import OpenSoftmax
    from .watch import Watch

watches: tuple[Watch, ...] = ()
"""The open watches. Replaced as a whole, never changed in place: threads read it without a lock."""
ablations: tuple[ModelIntervention, ...] = ()
"""The open `ablate` blocks and other interventions, replaced the same way."""

_FUNCTIONAL = vars(torch.nn.functional)
_is_traced = torch.compiler.is_dynamo_compiling  # with the flag of torch.export, less Python than `is_compiling`
_graph_task_id = getattr(torch._C, "_current_graph_task_id", None)  # private to PyTorch; −1 outside a backward pass


def set_watches(now: tuple[Watch, ...]) -> None:
    """Replace the open watches. The caller holds a lock."""
    global watches
    watches = now


def set_ablations(now: tuple[ModelIntervention, ...]) -> None:
    """Replace the open interventions. The caller holds a lock."""
    global ablations
    ablations = now


class ThreadState:
    """What the taps know of the code that runs in one thread."""

    __slots__ = (
        "captured", "interface_call", "multihead", "multihead_forward", "softmaxes", "suspended", "unheard",
    )  # fmt: skip

    def __init__(self) -> None:
        self.softmaxes: list[OpenSoftmax] = []
        """Results of softmaxes that may yet be multiplied with values."""
        self.unheard: nn.Module | None = None
        """The attention module whose `forward` runs, until a call of it is reported as seen or as missed."""
        self.multihead_forward: nn.Module | None = None
        """The nn.MultiheadAttention whose `forward` runs. Modules that compute its parameters may run inside it."""
        self.multihead: nn.Module | None = None
        """The same inside `F.multi_head_attention_forward`, which calls no module."""
        self.suspended = False
        """Inside a call that is reported as a whole: the functions it is made of are not reported."""
        self.interface_call: InterfaceCall | None = None
        """Inside an attention interface: its arguments, for the function it ends in."""
        self.captured: list[Call] | None = None
        """Inside `capture_calls`: calls are appended here and reported to no watch."""


class _Local(threading.local):
    """`local.state` is that of this thread. Attributes of the state itself are read faster than those of a `local`."""

    def __init__(self) -> None:
        self.state = ThreadState()


@dataclass(slots=True)
class InterfaceCall:
    """A call of Hugging Face's attention interface that has not returned yet."""

    module: nn.Module
    key: torch.Tensor
    value: torch.Tensor
    reported: bool = False
    """Whether a tap inside the interface has reported the call."""
    weights: torch.Tensor | None = None
    """The output of a softmax inside the interface: weights before dropout."""


def is_cross(module: nn.Module) -> bool | None:
    """Whether a module computes cross-attention, if it says so; causal attention is not."""
    declared = getattr(module, "is_cross_attention", None)
    return False if declared is None and getattr(module, "is_causal", False) else declared


local = _Local()


class suspend_reports:
    """Inside the block, calls are not reported. A class, because `contextmanager` takes three times as long."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        state = local.state
        self._before, state.suspended = state.suspended, True

    def __exit__(self, *error: object) -> None:
        local.state.suspended = self._before


def is_active() -> bool:
    """Whether a call made now is recorded or ablated. Recomputation during a backward pass is not a call."""
    state = local.state
    return (
        not state.suspended
        and (bool(watches) or bool(ablations) or state.captured is not None)
        and not _is_traced()
        and not getattr(torch.compiler, "_is_compiling_flag", False)
        and (_graph_task_id is None or _graph_task_id() == -1)
    )


def report(
    make: Callable[[], Call],
    module: nn.Module | None = None,
    *,
    output: Tensor | None = None,
    arrange: Callable[[Tensor], Tensor] | None = None,
    is_note: bool = False,
    name_filter: Callable[[str], bool] | None = None,
) -> None:
    """Pass a call to the watches of the model that `module` is part of; by default the calling module is looked up.

    An error of `make` is recorded as a missed call and does not reach the model. `output` is the tensor that the model
    goes on with, and `arrange` makes the gradient of W·v of its gradient, for watches that keep gradients. `is_note`:
    by code of others, so that ablations do not change the call. `name_filter` gets the name and class of the module,
    and decides whether the call is reported.
    """
    # Every line here runs once for each call of a watched model, and is written for speed.
    own = local.state
    own.unheard = None
    try:
        call = make()
    except Exception as error:
        report_missed(failure(error), module)
        return
    if own.captured is not None:
        own.captured.append(call)
        return
    for at, (watch, name, part) in enumerate(_watches_of(module if module is not None else own.multihead)):
        if name_filter is None or name_filter(_name_and_class(watch, name, part)):
            mine = call if not at else make()  # each watch joins the steps of generations by itself
            mine.name, mine.ablated = name, "" if is_note or not ablations else _ablated(part)
            try:
                watch.seen.add(mine, output, arrange)
            except Exception as error:
                watch.seen.add_missed(name, failure(error))


def _ablated(module: nn.Module) -> str:
    """What the open ablations change in a call of this module, in words."""
    return "; ".join(text for ablation, name in ablations_of(module) if (text := ablation.describe(name)))


def _name_and_class(watch: Watch, name: str, part: nn.Module) -> str:
    """The last component of the name, and the class; for an nn.Softmax those of its parent module."""
    if isinstance(part, nn.Softmax):
        name = name.rpartition(".")[0]
        part = watch.model.get_submodule(name)
    return f"{name.rpartition('.')[2]} {type(part).__name__}"


@contextmanager
def capture_calls() -> Iterator[list[Call]]:
    """The calls made inside the block, which are reported to no watch."""
    before = local.state.captured, local.state.interface_call
    local.state.captured, local.state.interface_call = [], None
    try:
        yield local.state.captured
    finally:
        local.state.captured, local.state.interface_call = before


def ablations_of(module: nn.Module | None) -> list[tuple[ModelIntervention, str]]:
    """The ablations that concern this module (by default the calling one), each with the module's name in it."""
    if not ablations or local.state.captured is not None:
        return []
    module = module if module is not None else calling_module()
    thread = threading.get_ident()  # an ablation applies to its own thread only
    return [(x, x.names[id(module)]) for x in ablations if x.thread == thread and id(module) in x.names]


def failure(error: Exception) -> str:
    """Why a call could not be recorded."""
    if torch._C._functorch.maybe_current_level() is not None:
        return (
            "inside torch.vmap or another transform its tensors exist only while the function runs; watch the models "
            "of an ensemble one by one"
        )
    return f"the call could not be recorded: {error}"


def report_missed(
    reason: str, module: nn.Module | None = None, *, name_filter: Callable[[str], bool] | None = None
) -> None:
    """Report a call that could not be recorded."""
    local.state.unheard = None
    for watch, name, part in _watches_of(module):
        if name_filter is None or name_filter(_name_and_class(watch, name, part)):
            watch.seen.add_missed(name, reason)


def report_unseen(module: nn.Module, reason: str) -> None:
    """Report an attention module that ran without any call being seen."""
    for watch, name, _ in _watches_of(module):
        watch.seen.add_unseen(name, reason)


def _watches_of(module: nn.Module | None) -> list[tuple[Watch, str, nn.Module]]:
    """The watches of the model that a module is part of, with its name there, if they select it."""
    now_open = watches  # read once: another thread may close its watch in between
    if len(now_open) == 1 and now_open[0].layers is None:  # almost always
        name = now_open[0].names.get(id(module))
        if name is not None:
            return [(now_open[0], name, cast("nn.Module", module))]
    if module is None or not _is_watched(module):
        module = calling_module()
    if module is None:
        return []
    number = id(module)
    matching = [(watch, watch.names[number], module) for watch in now_open if number in watch.names]
    if len(matching) > 1:
        # Where two threads each watch the same model, a watch gets the calls of its own thread. Calls from a thread
        # without a watch go to all.
        thread = threading.get_ident()
        matching = [match for match in matching if match[0].thread == thread] or matching
    return [match for match in matching if match[0].selects(match[1])]


def _is_watched(module: nn.Module) -> bool:
    number = id(module)
    for watch in watches:
        if number in watch.names:
            return True
    return any(number in ablation.names for ablation in ablations)


def calling_module() -> nn.Module | None:
    """The innermost watched module on the call stack, by the first argument (`self`) of each function.

    Walking the stack takes a few microseconds per attention call; hooks would cost time at every module, and would
    disable PyTorch's fast paths.
    """
    multihead = local.state.multihead
    if multihead is not None and _is_watched(multihead):
        return multihead
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        # Reading the variables of a frame takes time; functions of torch.nn.functional and taps are no methods.
        if code.co_argcount and frame.f_globals is not _FUNCTIONAL and code.co_varnames[0] != "original":
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module) and _is_watched(first):
                return first
        frame = frame.f_back  # type: ignore[assignment]
    return None


def called_by_regard() -> bool:
    """Whether it was code of regard that called the function whose replacement asks."""
    return bool(sys._getframe(3).f_globals.get("__name__", "").startswith("regard."))


class Replacement(NamedTuple):
    """`owner.name` becomes a function that calls `function(original, *args, **kwargs)`."""

    owner: Any
    name: str
    function: Callable[..., Any]
    is_active: Callable[[], bool] | None = is_active
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
    from .watch import TAPS

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
