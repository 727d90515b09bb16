"""watch: puts taps in place of the functions that compute attention, and passes each call to the open watches.

A tap (`taps.py` and its neighbours) sees the calls of one attention function; `taps.all_taps` is their table. A
replacement calls the original with the arguments it got and returns its result.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from .trace import ModuleDepths, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from .call import Call
    from .interventions import ModelIntervention
    from .taps import InterfaceCall
    from .taps_written import OpenSoftmax

    Guard = Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]

Parts = list[tuple[str, nn.Module]]
"""All modules of a model with their names, the model itself first, named ""."""


def watch(
    model: nn.Module,
    *,
    layers: int | str | Sequence[int | str] | None = None,
    keep: str | Path | None = None,
    limit: str | int | None = None,
    gradients: bool = False,
    activations: bool = False,
    prove: bool = False,
) -> Watch:
    """Record every attention call that `model` makes inside the block; the model itself does not change.

        with regard.watch(model) as seen:
            model(**inputs)                        # or model.generate(…), or a training step
        seen["encoder.layer.3"].head(5).top(8)

    Queries, keys, values and one number per row are kept by reference, so that watching takes almost no time; weights
    are computed when they are asked for.

    - `layers`: record these only, by depth, name or pattern (`3`, `"decoder"`, `"*.cross_attn"`).
    - `keep`: "cpu" keeps copies on the CPU, a folder keeps them in files; by default tensors are kept by reference.
      "qk" keeps no values: each call is then proved at once, which takes time while the model runs.
    - `limit`: the memory to keep at most ("8GB"); calls beyond are counted in `seen.missed`, not kept.
    - `gradients`: keep the gradient of each output, `call.gradient`, when a backward pass computes it, inside the block
      or after it. `call.contributions()` is then attention × gradient.
    - `activations`: keep what layers and MLPs return, by reference: `seen.stream[3]`, `seen.mlp[3]`.
    - `prove`: when the block ends, `regard.prove` of the first call of the model in it, and of the last if there are
      more: `seen.complete` and `seen.coverage`. It runs the model about four times for each.

    Held for each call: T_q · heads · D numbers of queries, T_k · key heads · D of keys and as many of values, a mask
    (two numbers per query where that is the same) and 64 rows of the output; of a generation, the newest keys and
    values only. `seen.matrices` lists the calls that hold their T_q × T_k weights instead. `seen.nbytes` is the sum.

    It holds the calls of the task and the thread that opened it, and of the tasks and threads that these start inside
    the block; what other tasks and threads do with the same model is not in it.

    Calls inside a model compiled with `torch.compile` cannot be recorded: watch the original model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a model (an nn.Module), got {type(model).__name__}")
    parts = named_parts(model)
    compiled = next((name or "the model" for name, part in parts if _is_compiled(part)), None)
    if compiled is not None:
        raise ValueError(
            f"{compiled} is compiled, and calls inside compiled code cannot be seen. Watch and call the original "
            "model (model._orig_mod, or without model.forward = torch.compile(…)), or watch before compiling"
        )
    return Watch(parts, layers, keep, limit, gradients, activations, prove)


def tensors_of(x: Any, depth: int = 0) -> list[Tensor]:
    """The tensors in arguments or outputs of a module, in order, each once."""
    if isinstance(x, torch.Tensor):
        return [] if x.is_nested or x.layout != torch.strided else [x]
    parts: Any = ()
    if isinstance(x, dict):
        parts = x.values()
    elif isinstance(x, list | tuple):
        parts = x
    elif hasattr(x, "__dataclass_fields__"):
        parts = vars(x).values() if hasattr(x, "__dict__") else ()
    found = [tensor for part in parts for tensor in tensors_of(part, depth + 1)] if depth < 4 else []
    return list({id(tensor): tensor for tensor in found}.values())


def _keeper(calls: list[tuple[Any, Any]]) -> Callable[..., None]:
    """A hook that keeps copies of the arguments of the first and of the last call."""

    def keep(module: nn.Module, args: Any, options: Any) -> None:
        memo: dict[int, Any] = {id(x): x.detach().clone() for x in tensors_of((args, options))}
        calls[1:] = [deepcopy((args, options), memo)]

    return keep


class Watch:
    """The context manager that `watch` returns; entering it returns a `Seen`."""

    def __init__(
        self,
        parts: Parts,
        layers: int | str | Sequence[int | str] | None,
        keep: str | Path | None,
        limit: str | int | None,
        gradients: bool,
        activations: bool,
        prove: bool = False,
    ) -> None:
        """`parts` are the modules of the model, the model itself first. Holding them keeps the ids in `names` valid."""
        self.model, self._parts, self._plan = parts[0][1], parts, plan(parts)
        self.names = {id(part): name or type(part).__name__ for name, part in parts}
        self.layers = [layers] if isinstance(layers, int | str) else layers
        self._depths = ModuleDepths(parts)
        for layer in self.layers or ():
            if not any(self._depths.selects(name, layer) for name in self.names.values()):
                raise ValueError(
                    f"layers has {layer!r}, which is no depth, name or pattern of a module of "
                    f"{type(self.model).__name__}; its modules are {_some_names(list(self.names.values())[1:])}"
                )
        self._selected: dict[str, bool] = {}
        self.number = next(numbers)
        self._entered = False
        self._calls: list[tuple[Any, Any]] | None = [] if prove else None  # arguments, to prove
        self._hook: Any = None
        storage = None
        if keep is not None or limit is not None:
            from .storage import TensorStorage

            storage = TensorStorage(keep, limit)
        self.seen = Seen(type(self.model).__name__, storage, self._depths, gradients)
        if activations:
            from .activations import Activations

            self.seen.activations = Activations(self.model)

    def __enter__(self) -> Seen:
        try:
            if not _here.get() and not opened.ablations:
                local.state = ThreadState()  # an interrupt may have left something open in the one before
            self._entered = True
            install(self.number, self._plan)
            registered = copy(self)  # so that nothing but the caller holds this one, see `__del__`
            registered._entered = False
            with _lock:
                opened.watches = (*opened.watches, registered)
            _here.set((*_here.get(), self.number))
            if self.seen.activations is not None:
                self.seen.activations.open()
            if self._calls is not None:
                self._hook = self.model.register_forward_pre_hook(_keeper(self._calls), with_kwargs=True)
        except BaseException:
            self._release()
            raise
        return self.seen

    def __exit__(self, *error: object) -> None:
        try:
            waiting, local.state.softmaxes = local.state.softmaxes, []
            for softmax in waiting:  # no product will follow
                softmax.report()
        finally:
            try:
                self._release()
            except BaseException:  # Ctrl-C may come here as well: all of it can be done again
                self._release()
                raise
            self.seen.close(functools.partial(_advice, type(self.model).__name__))
        if self._calls and error[0] is None:
            from .coverage import prove_calls

            self.seen.coverage = prove_calls(self.model, self._calls, self.seen)

    def _release(self) -> None:
        """Undo `__enter__`, whatever of it was done."""
        if self.seen.activations is not None:
            self.seen.activations.close()
        with _lock:
            opened.watches = tuple([watch for watch in opened.watches if watch.number != self.number])
        _here.set(tuple([number for number in _here.get() if number != self.number]))
        remove(self.number)
        if self._hook is not None:
            self._hook.remove()
        self._entered = False

    def __del__(self) -> None:
        """An interrupt may come as the first thing of `__exit__`, before any line of it."""
        if self.__dict__.get("_entered"):
            self._release()

    def selects(self, name: str) -> bool:
        """Whether the calls of the module of this name are recorded."""
        if self.layers is None:
            return True
        selected = self._selected.get(name)
        if selected is None:
            self._selected[name] = selected = any(self._depths.selects(name, x) for x in self.layers)
        return selected


def _some_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "") or "none"


def _advice(model: str) -> str:
    """What to do if no call was recorded."""
    functions = [tap.sees for tap in _taps() if tap.sees]
    advice = (
        f"{model} called no attention inside the block that could be seen: "
        f"{', '.join(functions[:-1])} or {functions[-1]}. A function of your own is seen with one line, "
        "regard.note(q, k, v, out)"
    )
    if "torch._dynamo" in sys.modules:  # imported by torch.compile
        advice += (
            ". Calls inside a function made by torch.compile, such as torch.compile(model.forward), cannot be "
            "seen: call the model itself inside the block, or torch.compiler.set_stance('force_eager') first"
        )
    return advice


def _is_compiled(part: nn.Module) -> bool:
    """Whether it is torch.compile(module), or was compiled by module.compile() or torch.compile(module.forward)."""
    own = part.__dict__
    if own.get("_compiled_call_impl") is not None or type(part).__name__ == "OptimizedModule":
        return True
    return "forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable")


def named_parts(model: nn.Module) -> Parts:
    """`model.named_modules()` as a list, in a third of the time."""
    parts: Parts = []
    known: set[int] = set()

    def visit(name: str, part: nn.Module) -> None:
        known.add(id(part))
        parts.append((name, part))
        for key, child in part._modules.items():
            if child is not None and id(child) not in known:
                visit(f"{name}.{key}" if name else key, child)

    visit("", model)
    return parts


# Who gets a call


@dataclass(slots=True)
class Opened:
    """What is open in all threads. The tuples are replaced, never changed in place: they are read without a lock."""

    watches: tuple[Watch, ...] = ()
    ablations: tuple[ModelIntervention, ...] = ()
    """`ablate` blocks and other interventions."""


opened = Opened()
numbers = itertools.count(1)
_here: ContextVar[tuple[int, ...]] = ContextVar("regard_watches", default=())
"""The numbers of the watches that were opened in this task or thread, or inside which it was started."""
_lock = threading.RLock()
_is_traced = torch.compiler.is_dynamo_compiling  # with the flag of torch.export, less Python than `is_compiling`
_graph_task_id = getattr(torch._C, "_current_graph_task_id", None)  # private to PyTorch; −1 outside a backward pass
_FUNCTIONAL = vars(torch.nn.functional)


@contextmanager
def opened_also(listener: Any) -> Iterator[None]:
    """Inside the block the taps, which are in place, report calls to this listener as well."""
    with _lock:
        opened.watches = (*opened.watches, listener)
    before = _here.set((*_here.get(), listener.number))
    try:
        yield
    finally:
        _here.reset(before)
        with _lock:
            opened.watches = tuple([watch for watch in opened.watches if watch is not listener])


class ThreadState:
    """What the taps know of the code that runs in one thread."""

    __slots__ = (
        "captured", "frozen", "interface_call", "multihead", "multihead_forward", "softmaxes", "suspended",
    )  # fmt: skip

    def __init__(self) -> None:
        self.softmaxes: list[OpenSoftmax] = []
        """Results of softmaxes that may yet be multiplied with values."""
        self.multihead_forward: nn.Module | None = None
        """The nn.MultiheadAttention whose `forward` runs. Modules that compute its parameters may run inside it."""
        self.multihead: nn.Module | None = None
        """The same inside `F.multi_head_attention_forward`, which calls no module."""
        self.suspended = False
        """Inside a call that is reported as a whole: the functions it is made of are not reported."""
        self.interface_call: InterfaceCall | None = None
        """Inside an attention interface: its arguments, for the function it ends in."""
        self.frozen: Callable[[], Tensor | None] | None = None
        """Inside `prove`: the output that the next call is put back to, so that its kernel need not run."""
        self.captured: list[Call] | None = None
        """Inside `capture_calls`: calls are appended here and reported to no watch."""


class _Local(threading.local):
    """`local.state` is that of this thread. Attributes of the state itself are read faster than those of a `local`."""

    def __init__(self) -> None:
        self.state = ThreadState()


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
        and (bool(opened.watches and _here.get()) or bool(opened.ablations) or state.captured is not None)
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
    if not opened.watches and own.captured is None:  # an ablation alone
        return
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
            mine.name, mine.ablated = name, "" if is_note or not opened.ablations else _ablated(part)
            try:
                watch.seen.add(mine, output, arrange)
            except Exception as error:
                watch.seen.add_missed(name, failure(error))


def report_missed(
    reason: str, module: nn.Module | None = None, *, name_filter: Callable[[str], bool] | None = None
) -> None:
    """Report a call that could not be recorded."""
    for watch, name, part in _watches_of(module):
        if name_filter is None or name_filter(_name_and_class(watch, name, part)):
            watch.seen.add_missed(name, reason)


def failure(error: Exception) -> str:
    """Why a call could not be recorded."""
    if torch._C._functorch.maybe_current_level() is not None:
        return (
            "inside torch.vmap or another transform its tensors exist only while the function runs; watch the models "
            "of an ensemble one by one"
        )
    return f"the call could not be recorded: {error}"


def _name_and_class(watch: Watch, name: str, part: nn.Module) -> str:
    """The last component of the name, and the class; for an nn.Softmax those of its parent module."""
    if isinstance(part, nn.Softmax):
        name = name.rpartition(".")[0]
        part = watch.model.get_submodule(name)
    return f"{name.rpartition('.')[2]} {type(part).__name__}"


@contextmanager
def capture_calls() -> Iterator[list[Call]]:
    """The calls made inside the block, which are reported to no watch. Taps are in place, also if no watch is open."""
    state, calls = local.state, list[Any]()
    before, number = (state.captured, state.interface_call), next(numbers)
    try:
        state.captured, state.interface_call = calls, None
        install(number)
        yield calls
    finally:
        remove(number)
        state.captured, state.interface_call = before


def ablations_of(module: nn.Module | None = None) -> list[tuple[ModelIntervention, str]]:
    """The ablations that concern this module (by default the calling one), each with the module's name in it."""
    if not opened.ablations or local.state.captured is not None:
        return []
    module = module if module is not None else calling_module()
    thread = threading.get_ident()  # an ablation applies to its own thread only
    return [(x, x.names[id(module)]) for x in opened.ablations if x.thread == thread and id(module) in x.names]


def _ablated(module: nn.Module) -> str:
    """What the open ablations change in a call of this module, in words."""
    return "; ".join(text for ablation, name in ablations_of(module) if (text := ablation.describe(name)))


def _watches_of(module: nn.Module | None) -> list[tuple[Watch, str, nn.Module]]:
    """The watches of the model that a module is part of, with its name there, if they select it."""
    mine = _open_here()
    if len(mine) == 1 and mine[0].layers is None:  # almost always
        name = mine[0].names.get(id(module))
        if name is not None:
            return [(mine[0], name, cast("nn.Module", module))]
    if module is None or not _is_watched(module):
        module = calling_module()
    if module is None:
        return []
    number = id(module)
    matching = [(watch, watch.names[number], module) for watch in mine if number in watch.names]
    return [match for match in matching if match[0].selects(match[1])]


def _open_here() -> list[Watch]:
    """The open watches of this task or thread. `opened` is read once: another thread may close one in between."""
    here = _here.get()
    return [watch for watch in opened.watches if watch.number in here]


def _start_thread(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    """A thread started inside a watch belongs to it, as a task of asyncio does."""
    here, run = _here.get(), thread.run

    def run_here() -> None:
        vars(thread).pop("run", None)
        _here.set(here)
        run()

    if here:
        vars(thread)["run"] = run_here
    original(thread)


def _is_watched(module: nn.Module) -> bool:
    number = id(module)
    for watch in _open_here():
        if number in watch.names:
            return True
    return any(number in ablation.names for ablation in opened.ablations)


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


# How taps are put in place


def when_active(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `function(original, …)` if the call is recorded or ablated."""

    def tapped(*args: Any, **kwargs: Any) -> Any:
        if not is_active():
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    return tapped


def when_softmax_waits(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The same if, besides, a softmax waits for its product with values. Models multiply often: that is asked first."""

    def tapped(*args: Any, **kwargs: Any) -> Any:
        if not local.state.softmaxes or not is_active():
            return original(*args, **kwargs)
        return function(original, *args, **kwargs)

    return tapped


def unguarded(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `function(original, …)` in any case."""

    def tapped(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return tapped


class Replacement(NamedTuple):
    """`owner.name` becomes a function that calls `function(original, *args, **kwargs)`."""

    owner: Any
    name: str
    function: Callable[..., Any]
    guard: Guard = when_active


def forward_of(part: nn.Module, function: Callable[..., Any], guard: Guard = when_active) -> Iterator[Replacement]:
    """The replacement of a module's `forward` in its class, and in itself if it has its own."""
    yield Replacement(type(part), "forward", function, guard)

    def bound(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.partial(guard(lambda _, *args, **kwargs: original(*args, **kwargs), function), part)

    if "forward" in vars(part):  # hooks of accelerate's device_map keep the one before
        yield Replacement(part, "forward", function, bound)


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Tap:
    """What a tap sees, in words for messages, and how it is put in place."""

    sees: str
    replacements: Sequence[Replacement] = ()
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Those of functions with these names, in the Python modules of a model's classes."""
    forwards: Mapping[frozenset[str], Callable[..., Any]] = field(default_factory=dict)
    """Those of `forward` of modules that have children with these names."""
    of_model: Callable[[Parts], Iterable[Replacement]] = lambda _: ()
    """Others that depend on a model's modules."""
    on_install: Callable[[], None] = _nothing
    on_remove: Callable[[], None] = _nothing


@functools.cache
def _taps() -> tuple[Tap, ...]:
    from .taps import all_taps

    return (*all_taps(), Tap("", [Replacement(threading.Thread, "start", _start_thread, unguarded)]))


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    after: Any


_ABSENT = object()
_owners: set[int] = set()
"""The numbers of those that need the taps in place."""
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
    modules = {type(part).__module__ for _, part in parts}
    replacements = []
    for tap in _taps():
        for module in (sys.modules.get(name) for name in modules) if tap.functions else ():
            names = vars(module).keys() & tap.functions.keys() if module is not None else ()
            replacements += [Replacement(module, name, tap.functions[name]) for name in names]
        for children, function in tap.forwards.items():
            replacements += [
                x for _, part in parts if children <= part._modules.keys() for x in forward_of(part, function)
            ]
        replacements += tap.of_model(parts)
    packages = {name.partition(".")[0] for name in modules} - {"torch", "transformers", "regard"}
    return PatchPlan(replacements, sorted(packages))


def install(owner: int, plan: PatchPlan | None = None) -> None:
    """Put all taps in place, also where Python modules of the packages of a model's parts imported one by name.

    They stay until `remove` of every owner. An interrupt may come at any moment: each step can be undone or repeated.
    """
    with _lock:
        before, first = len(_patches), not _owners
        try:
            _owners.add(owner)
            if first:
                for tap in _taps():
                    for owner_of_name, name, function, guard in tap.replacements:
                        _patch(owner_of_name, name, _wrap(getattr(owner_of_name, name), function, guard))
            if plan is not None:
                _install_plan(plan)
            if first:
                for tap in _taps():
                    tap.on_install()
        except BaseException:
            if not first:
                _restore(before)
            remove(owner)
            raise


def _install_plan(plan: PatchPlan) -> None:
    for owner, name, function, guard in plan.replacements:
        original = getattr(owner, name)
        if id(original) not in _tapped:  # a class may be that of two models
            # A cached function of a module would keep the module alive.
            wrap = _wrap.__wrapped__ if isinstance(owner, nn.Module) else _wrap
            after = wrap(original, function, guard)
            _patch(owner, name, after)
            _tapped.add(id(after))
    for package in plan.packages:
        for module in _modules_of_package(package, len(sys.modules)):
            for name, value in list(vars(module).items()):
                if id(value) in _replaced_by:
                    _patch(module, name, _replaced_by[id(value)])


def remove(owner: int) -> None:
    """Undo `install`; that of the last owner restores the original functions."""
    with _lock:
        _owners.discard(owner)
        if not _owners and _patches:
            for tap in _taps():
                tap.on_remove()
            local.state.softmaxes.clear()  # what an ablation alone left waiting is nobody's
            _restore(0)


@functools.lru_cache(maxsize=256)
def _wrap(original: Any, function: Callable[..., Any], guard: Callable[..., Any]) -> Any:
    tapped = guard(original, function)
    functools.update_wrapper(tapped, original)
    return tapped


def _patch(owner: Any, name: str, after: Any) -> None:
    before = vars(owner).get(name, _ABSENT)  # a method may be inherited
    original = getattr(owner, name)
    _patches.append(_Patch(owner, name, before, after))
    _replaced_by.setdefault(id(original), after)
    setattr(owner, name, after)


def _restore(count: int) -> None:
    """Undo all but the first `count` patches."""
    while len(_patches) > count:
        owner, name, before, after = _patches[-1]
        # If other code has replaced our function since, leave theirs; ours, if they call it, only calls the original.
        if vars(owner).get(name) is after:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        _patches.pop()
    if not count:
        _replaced_by.clear()
        _tapped.clear()


@functools.lru_cache(maxsize=64)
def _modules_of_package(package: str, loaded: int) -> list[ModuleType]:
    """Those loaded; `loaded`, how many there are of any package, makes the cache forget when one is added."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in modules if name.partition(".")[0] == package]
