"""ScoreTrace: follows the product of queries and keys to the softmax, in attention that a module writes out.

It is a function mode of PyTorch that is on from a product to the softmax after it, and off in all other code: nothing
else in the model passes through it.
"""

from __future__ import annotations

import math
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ....attention.tensor_versions import version_of
from .. import call_routing
from ..recording.written_scores import WrittenScores
from .function_mode import FollowingMode, begin_mode, end_mode, other_mode
from .moved_scores import MOVES, MovedScores

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from torch import Tensor

    Origin = WrittenScores | MovedScores | str
    Place = tuple[CodeType, int]

FUNCTIONS = 96
"""Functions that may run between a product and its softmax. If there are more, the product is something else."""
SHAPE_FROM = {
    **dict.fromkeys(("expand_as", "view_as", "reshape_as", "type_as", "to"), 1),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "empty_like"), 0),
    **dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"), 0),
}
"""How many arguments give the values of the result. The others give its shape or type."""
SUMS = frozenset(("add", "iadd", "radd"))
REST = 32
"""Functions that may run between an attention and the softmax of scores that were computed before it."""
without_softmax: set[Place] = set()
"""Places in code whose product was followed by no softmax. They are not followed again."""
NOT_FOUND = "no product of queries and keys was found before its softmax"


class ScoreTrace(FollowingMode):
    """What is known of each tensor that comes from a product: its steps, or why they cannot be repeated."""

    def __init__(self) -> None:
        super().__init__(FUNCTIONS)
        self._origins: dict[int, tuple[weakref.ref[Tensor], int | None, Origin]] = {}
        self._places: list[Place] = []

    def begin(self, out: Tensor, origin: Origin, place: Place) -> None:
        """Follow the result of a product that was computed at this place of the model's code."""
        self.left = FUNCTIONS
        self._places.append(place)
        self._add(out, origin)

    def finish(self) -> None:
        super().finish()
        self._origins, self._places = {}, []

    def origin(self, x: Any) -> Origin | None:
        """How x was computed from a product; None if it was not, or was changed in place by another function."""
        entry = self._origins.get(id(x))
        if entry is None:
            return None
        reference, version, origin = entry
        is_same = reference() is x  # ids are used again
        return origin if is_same and version == version_of(x) else None

    def rest(self, used: Origin) -> ScoreTrace | None:
        """What is left to follow after the softmax of some scores: sums that are not part of these."""
        left = {
            key: entry
            for key, entry in self._origins.items()
            if isinstance(entry[2], WrittenScores)
            and len(entry[2].products()) > 1
            and not (isinstance(used, WrittenScores) and used.contains(entry[2]))
            and self.origin(entry[0]()) is not None
        }
        if not left:
            return None
        trace = ScoreTrace()
        trace.left, trace._origins = REST, left
        return trace

    def follow(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not self.left:
            without_softmax.update(self._places)
        name = function.__name__
        values = args[0] if args and isinstance(args[0], list | tuple) else args[: SHAPE_FROM.get(name, 3)]
        origins = [self.origin(x) for x in values]
        result = function(*args, **options)
        if any(x is not None for x in origins) and type(result) is torch.Tensor:
            self._add(result, _after(name, args, options, values, origins, result))
        elif name == "__setitem__" and args[0].is_inference():
            self._origins.pop(id(args[0]), None)  # it has no version counter that would tell
        return result

    def _add(self, x: Tensor, origin: Origin) -> None:
        self._origins[id(x)] = weakref.ref(x), version_of(x), origin


def _after(
    name: str, args: tuple[Any, ...], options: dict[str, Any], values: Any, origins: list[Origin | None], x: Tensor
) -> Origin:
    """What is known of a function's result. `values` are the arguments that `origins` belong to."""
    at = next(at for at, origin in enumerate(origins) if origin is not None)
    scores, plain = origins[at], name.strip("_")
    if scores is None or isinstance(scores, str):
        return NOT_FOUND if scores is None else scores
    if sum(origin is not None for origin in origins) > 1:
        return _sum(plain, options, origins, x)
    if isinstance(scores, MovedScores):
        return scores.after(plain, x)
    step = _STEPS.get(plain)
    after = None if step is None else step(scores, at, args, options, x)
    if after is None and plain in MOVES and not scores.is_moved():
        return MovedScores(scores, values[at], version_of(values[at]))
    return f"its scores pass through {name}" if after is None else after


def _sum(name: str, options: dict[str, Any], origins: list[Origin | None], x: Tensor) -> Origin:
    """The sum of two products, each of which may be a sum. What is masked before is not added to others."""
    pair = [origin for origin in origins[:2] if isinstance(origin, WrittenScores)]
    if name in SUMS and not options and len(pair) == 2 and all(origin.shape == x.shape for origin in pair):
        pair.sort(key=WrittenScores.is_moved)
        for scores, addend in (pair, pair[::-1]):
            if addend.can_be_added() and (not scores.is_moved() or scores.can_be_added()):
                return scores.then("sum", x, addend=addend)
    return "its scores are computed from several products"


def _added(scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Origin | None:
    return None if options else _plus(scores, args[1 - at], 1.0, x)


def _subtracted(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    return None if options or at else _plus(scores, args[1], -1.0, x)


def _plus(scores: WrittenScores, other: Any, sign: float, x: Tensor) -> Origin | None:
    if isinstance(other, int | float) and other == 0:
        return scores  # a bias that is switched off
    if not isinstance(other, torch.Tensor) or x.shape != scores.shape or not other.is_floating_point():
        return None
    return scores.then("add", x, number=sign, tensor=other)


def _multiplied(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    factor = args[1 - at]
    if options or x.shape != scores.shape:
        return None
    if isinstance(factor, torch.Tensor) and factor.dim() > 1 and factor.is_floating_point():
        return scores.then("gate", x, tensor=factor)
    return scores.then("scale", x, number=factor) if _is_number(factor) else None


def _divided(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    if options or at or x.shape != scores.shape or not _is_number(args[1]):
        return None
    number = args[1]
    return scores.then("scale", x, number=1 / (number.double() if isinstance(number, torch.Tensor) else number))


def _filled(scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Origin | None:
    if at or len(args) != 3 or x.shape != scores.shape or args[1].dtype != torch.bool or not _is_number(args[2]):
        return None
    return scores.then("close", x, number=args[2], tensor=args[1])


def _where(scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Origin | None:
    if len(args) != 3 or x.shape != scores.shape:
        return None
    condition = args[1] if at == 0 else args[0]  # the method is called on the scores
    value = args[1] if at == 2 else args[2]
    if condition.dtype != torch.bool or not _is_number(value):
        return None
    return scores.then("close", x, number=value, tensor=condition, closed=at == 2)


def _bounded(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    bounds = [*args[:at], *args[at + 1 :], *options.values()]
    if len(bounds) != 1 or not _is_number(bounds[0]) or x.shape != scores.shape or not {*options} <= {"min", "other"}:
        return None
    return scores.then("floor", x, number=bounds[0])


def _cast(scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Origin | None:
    return scores.then("cast", x) if not at and x.is_floating_point() and x.shape == scores.shape else None


def _reshaped(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    if at or x.dim() < 2 or x.shape[-2:] != scores.shape[-2:] or x.numel() != math.prod(scores.shape):
        return None
    scores = scores.then("cast", x) if x.shape != scores.shape else scores
    return scores._replace(shape=tuple(x.shape))


def _gathered(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    if at or options.get("sparse_grad"):
        return None
    arguments = dict(zip(("input", "dim", "index"), args, strict=False)) | options
    dim, index = arguments["dim"], arguments["index"]
    if dim not in (-1, x.dim() - 1) or x.shape[:-1] != scores.shape[:-1]:
        return None
    return scores.then("gather", x, tensor=index)._replace(shape=tuple(x.shape))


def _transposed(
    scores: WrittenScores, at: int, args: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Origin | None:
    axes = {dim % x.dim() for dim in args[1:] if isinstance(dim, int)}
    if at or options or len(args) != 3 or axes != {x.dim() - 1, x.dim() - 2}:
        return None
    return scores.then("transpose", x)._replace(shape=tuple(x.shape))


_STEPS: dict[str, Callable[..., Origin | None]] = {
    **dict.fromkeys(SUMS, _added),
    "sub": _subtracted,
    "isub": _subtracted,
    "mul": _multiplied,
    "imul": _multiplied,
    "div": _divided,
    "truediv": _divided,
    "idiv": _divided,
    "itruediv": _divided,
    "masked_fill": _filled,
    "where": _where,
    "gather": _gathered,
    "transpose": _transposed,
    "max": _bounded,
    "maximum": _bounded,
    "clamp": _bounded,
    "clamp_min": _bounded,
    **dict.fromkeys(("float", "double", "half", "bfloat16", "to", "type", "type_as"), _cast),
    **dict.fromkeys(("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "contiguous"), _reshaped),
}
"""Functions that act on each score alone, by name without the underscores of methods and in-place variants."""


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) or (isinstance(x, torch.Tensor) and x.dim() == 0)


def begin_trace(
    out: Tensor, a: Tensor, b: Tensor, equation: str | None = None, scale: float = 1.0, added: Tensor | None = None
) -> None:
    """Follow a product that may be that of queries and keys; `added` is what `baddbmm` adds to it."""
    state = call_routing.local.state
    if type(out) is not torch.Tensor or out.dim() < 3 or state.interface_call is not None:
        return
    frame = sys._getframe(3)  # the code of the model that called the replaced function
    place = frame.f_code, frame.f_lasti
    if place in without_softmax or not out.is_floating_point():
        return
    if state.captured is None and call_routing.calling_module() is None:
        return  # another thread, or code around the model
    trace = state.trace
    if not isinstance(trace, ScoreTrace):
        trace = ScoreTrace()
        begin_mode(trace)
    shape = tuple(out.shape)
    versions, accesses = (version_of(a), version_of(b)), state.memory_accesses
    scores = WrittenScores((a, b), versions, equation, scale, shape, out.dtype, memory_accesses=accesses)
    if added is not None:
        scores = scores.then("add", out, tensor=added)._replace(fused=True)
    trace.begin(out, scores, place)


def end_trace(x: Tensor) -> WrittenScores | str:
    """Stop following, and return how x was computed. What is not used by it yet waits for `resume_trace`."""
    trace = call_routing.local.state.trace
    origin, rest = None, None
    if isinstance(trace, ScoreTrace):
        origin = trace.origin(x)
        rest = trace.rest(origin or NOT_FOUND)
    end_mode()
    call_routing.local.state.paused_trace = rest
    if isinstance(origin, MovedScores):
        return "its scores are moved along the keys"
    return origin or other_mode() or NOT_FOUND


def resume_trace() -> None:
    """After the product with values: follow the scores that were computed before the softmax, and are not used yet."""
    state = call_routing.local.state
    trace, state.paused_trace = state.paused_trace, None
    if trace is not None:
        begin_mode(trace)
