"""Dispatch: passes each attention call that a tap sees to the watches of the model that made it."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from ..recorder import CapturedCall
from .output_gradients import GraphOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from ..effects.interventions import Intervention
    from ..taps_written import OpenSoftmax
    from .call_inputs_and_output import Record
    from .watch import Watch

watches: tuple[Watch, ...] = ()
"""The open watches. Replaced as a whole, never changed in place: threads read it without a lock."""
ablations: tuple[Intervention, ...] = ()
"""The open `ablate` blocks and other interventions, replaced the same way."""

_FUNCTIONAL = vars(torch.nn.functional)
_is_traced = torch.compiler.is_dynamo_compiling  # with the flag of torch.export, less Python than `is_compiling`
_graph_task_id = getattr(torch._C, "_current_graph_task_id", None)  # private to PyTorch; −1 outside a backward pass


def set_watches(now: tuple[Watch, ...]) -> None:
    """Replace the open watches. The caller holds a lock."""
    global watches
    watches = now


def set_ablations(now: tuple[Intervention, ...]) -> None:
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
        self.captured: list[Record] | None = None
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


def keeps_gradients() -> bool:
    """Whether an open watch keeps the gradients of outputs."""
    return any(watch.recorder.gradients for watch in watches)


def report(
    record: Record | Callable[[], Record],
    module: nn.Module | None = None,
    *,
    tensors: tuple[torch.Tensor, ...] = (),
    name_filter: Callable[[str], bool] | None = None,
    output: GraphOutput | None = None,
) -> None:
    """Pass a call to the watches of the model that `module` is part of; by default the calling module is looked up.

    `record` may be a function that computes the record later; `tensors` are what it keeps alive. `name_filter` gets
    the name and class of the module, and decides whether the call is reported. `output` is the output with its graph,
    for watches that keep gradients.
    """
    local.state.unheard = None
    if local.state.captured is not None:
        if not callable(record):
            local.state.captured.append(record)
        return
    for watch, name, part in _watches_of(module if module is not None else local.state.multihead):
        if name_filter is None or name_filter(_name_and_class(watch, name, part)):
            ablated = _ablated(part) if ablations else ""
            if callable(record):
                watch.recorder.add_deferred(name, record, tensors, ablated, output)
            else:
                watch.recorder.add_record(name, record, ablated, output)


def try_capture(
    make: Callable[[CapturedCall], Record],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    module: nn.Module | None = None,
    mask: Tensor | None = None,
    state: Tensor | None = None,
    learned: tuple[Tensor, ...] = (),
    settings: tuple[Any, ...] | None = None,
    details: Any = None,
    output: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None,
    is_note: bool = False,
) -> None:
    """Pass a call to the watches, as `report` does; its record is made when somebody asks. See `CapturedCall`.

    `output` is that of a `GraphOutput`, by default `out` as it is. `is_note`: by code of others, so that ablations do
    not change the call.
    """
    # Every line here runs once for each call of a watched model, and is written for speed.
    own = local.state
    own.unheard = None
    try:
        call = CapturedCall(make, q, k, v, out, mask, state, learned, settings, details)
    except Exception as error:  # an error of ours must not stop the model
        report_missed(failure(error), module)
        return
    now_open = watches  # read once: another thread may close its watch in between
    if len(now_open) == 1 and not ablations and own.captured is None:  # almost always
        watch = now_open[0]
        name = watch.names.get(id(module)) if watch.layers is None else None
        if name is not None and not watch.recorder.gradients:
            try:
                watch.recorder.add_captured(name, call)
            except Exception as error:
                watch.recorder.add_missed(name, failure(error))
            return
    if own.captured is not None:
        own.captured.append(call.record())
        return
    for watch, name, part in _watches_of(module if module is not None else own.multihead):
        gradient = (
            None if not watch.recorder.gradients else GraphOutput(out) if output is None else GraphOutput(*output)
        )
        try:
            watch.recorder.add_captured(name, call, "" if is_note or not ablations else _ablated(part), gradient)
        except Exception as error:
            watch.recorder.add_missed(name, failure(error))


def _ablated(module: nn.Module) -> str:
    """What the open ablations change in a call of this module, in words."""
    return "; ".join(text for ablation, name in ablations_of(module) if (text := ablation.describe(name)))


def _name_and_class(watch: Watch, name: str, part: nn.Module) -> str:
    """The last component of the name, and the class; for an nn.Softmax those of its parent module."""
    if isinstance(part, nn.Softmax):
        name = name.rpartition(".")[0]
        part = watch.model.get_submodule(name)
    return f"{name.rpartition('.')[2]} {type(part).__name__}"


def try_report(
    make: Callable[[], Record | Callable[[], Record]],
    module: nn.Module | None = None,
    *,
    tensors: tuple[torch.Tensor, ...] = (),
    name_filter: Callable[[str], bool] | None = None,
    output: GraphOutput | None = None,
) -> None:
    """Report what `make` returns. An error in it is recorded as a missed call and does not reach the model."""
    try:
        record = make()
    except Exception as error:
        report_missed(failure(error), module)
        return
    report(record, module, tensors=tensors, name_filter=name_filter, output=output)


@contextmanager
def capture_calls() -> Iterator[list[Record]]:
    """The calls made inside the block, which are reported to no watch."""
    before = local.state.captured, local.state.interface_call
    local.state.captured, local.state.interface_call = [], None
    try:
        yield local.state.captured
    finally:
        local.state.captured, local.state.interface_call = before


def ablations_of(module: nn.Module | None) -> list[tuple[Intervention, str]]:
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
            watch.recorder.add_missed(name, reason)


def report_unseen(module: nn.Module, reason: str) -> None:
    """Report an attention module that ran without any call being seen."""
    for watch, name, _ in _watches_of(module):
        watch.recorder.add_unseen(name, reason)


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
