"""Watching: who is told of a call of attention. Every tap reports here; the watches of the model concerned are told."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..analysis.ablation import Change
    from .record import Record
    from .watch import Watch

watches: tuple[Watch, ...] = ()
"""Replaced whole, never changed: threads that read it need no lock."""
changes: tuple[Change, ...] = ()
"""What `ablate` wants different, the same way."""


_backward = getattr(torch._C, "_current_graph_task_id", None)  # PyTorch's own business; −1 outside the backward pass


class _Here(threading.local):
    quiet = False
    """Inside a call that is reported as a whole: what it is made of is not reported again."""
    outer: Outer | None = None
    """Inside an attention interface: what it was given, for the function it ends in."""
    captured: list[Record] | None = None
    """Inside a computation repeated to learn its parts: calls go here, and nowhere else."""


@dataclass
class Outer:
    module: nn.Module
    key: torch.Tensor
    value: torch.Tensor
    inner: bool = False
    """Whether a call further in was reported, which then needs no reporting here."""
    weights: torch.Tensor | None = None
    """What came out of a softmax further in: before dropout."""

    @property
    def cross(self) -> bool | None:
        """Whether keys come from elsewhere, where the module says so: what is causal looks at its own past."""
        told = getattr(self.module, "is_cross_attention", None)
        return False if told is None and getattr(self.module, "is_causal", False) else told


here = _Here()


@contextmanager
def quietly() -> Iterator[None]:
    before, here.quiet = here.quiet, True
    try:
        yield
    finally:
        here.quiet = before


def listening() -> bool:
    """Whether a call made now should be looked at. Recomputation during the backward pass is not a call of its own."""
    return (
        (bool(watches) or bool(changes) or here.captured is not None)
        and not here.quiet
        and not torch.compiler.is_compiling()
        and (_backward is None or _backward() == -1)
    )


def report(
    record: Record | Callable[[], Record],
    module: nn.Module | None = None,
    *,
    held: tuple[torch.Tensor, ...] = (),
    only: Callable[[str], bool] | None = None,
) -> None:
    """Tell the watches of the model that `module` is part of; without one, the module that called is looked for.

    `held` is what a call that will be worked out later keeps alive. `only` asks the module's own name and class.
    """
    if here.captured is not None:
        if not callable(record):
            here.captured.append(record)
        return
    for watch, name, part in _concerned(module):
        if only is None or only(_own_name(watch, name, part)):
            watch.hear(name, record, held)


def _own_name(watch: Watch, name: str, part: nn.Module) -> str:
    """The last part of its name, and its class; of an nn.Softmax those of the module it serves."""
    if isinstance(part, nn.Softmax):
        name = name.rpartition(".")[0]
        part = watch.model.get_submodule(name)
    return f"{name.rpartition('.')[2]} {type(part).__name__}"


def attempt(
    make: Callable[[], Record], module: nn.Module | None = None, *, only: Callable[[str], bool] | None = None
) -> None:
    """Report what `make` understands of a call. The model has made it already, and must not fail for our sake."""
    try:
        record = make()
    except Exception as error:
        missed(f"a call was not understood: {error}", module)
        return
    report(record, module, only=only)


@contextmanager
def capturing() -> Iterator[list[Record]]:
    """The calls made inside, which no watch is told of."""
    before = here.captured, here.outer
    here.captured, here.outer = [], None
    try:
        yield here.captured
    finally:
        here.captured, here.outer = before


def changed(module: nn.Module | None) -> list[tuple[Change, str]]:
    """What is to be different in this module, or in the one that called."""
    if not changes or here.captured is not None:
        return []
    module = module if module is not None else _caller()
    thread = threading.get_ident()  # one that runs the same model in another has asked for nothing
    return [(x, x.names[id(module)]) for x in changes if x.thread == thread and id(module) in x.names]


def missed(why: str, module: nn.Module | None = None) -> None:
    """Tell the same watches of a call that could not be understood."""
    for watch, name, _ in _concerned(module):
        watch.miss(name, why)


def _concerned(module: nn.Module | None) -> list[tuple[Watch, str, nn.Module]]:
    module = module if module is not None and _known(module) else _caller()
    if module is None:
        return []
    found = [(watch, watch.names[id(module)], module) for watch in watches if id(module) in watch.names]
    # Two threads that run one model each watch their own; a model run in a thread of its own is watched from any.
    thread = threading.get_ident()
    own = [one for one in found if one[0].thread == thread]
    return own or found


def _known(module: nn.Module) -> bool:
    known = [watch.names for watch in watches] + [change.names for change in changes]
    return any(id(module) in names for names in known)


def _caller() -> nn.Module | None:
    """The innermost watched module among the functions now running, by their first argument (`self`).

    Looking at the stack costs a few microseconds per call of attention; hooks would cost some at every module, and
    would keep PyTorch from its fast paths.
    """
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, nn.Module) and _known(first):
                return first
        frame = frame.f_back  # type: ignore[assignment]
    return None
