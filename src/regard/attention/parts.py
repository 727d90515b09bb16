"""Parts (forms, modifiers, normalizers, masks), the places in blocks of the matrix that they are asked about, what
PyTorch is doing meanwhile (transforms, tracing, autocast), and inputs changed in place.

Masks and score modifiers are functions of places (which batch entries, which queries, which keys), so that one
definition serves a whole matrix, one tile of it, and FlexAttention's `mask_mod` and `score_mod`.

A part is made of the arguments of its constructor, kept as attributes of the same names. From these it lists and maps
its tensors, describes itself for a trace, and is rebuilt. A subclass gets all of it without a line of its own.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from copy import copy
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from jaxtyping import Float, Int

    Batch = tuple[Tensor, ...]
    Index = slice | Tensor

_any_global_hook = getattr(torch.nn.modules.module, "_has_any_global_hook", None)  # private to PyTorch


def transformed() -> bool:
    """Whether this runs inside a transform of torch.func (grad, vmap, …).

    There tensors cannot be read or checkpointed, and gradients registered with torch.library are ignored.
    """
    if torch.compiler.is_compiling():
        return False
    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def global_hooks() -> bool:
    """Whether a hook was registered for the calls of all modules."""
    return _any_global_hook is None or _any_global_hook()


def forward_mode() -> bool:
    """Whether directional derivatives are computed: inside torch.func.jvp, jacfwd, hessian or forward_ad.dual_level."""
    return torch.autograd.forward_ad._current_level >= 0


def no_kernel() -> str | None:
    """Why no kernel can be used: kernels are differentiated once, and backward; None where that is enough."""
    if forward_mode() or transformed():
        return 'torch.func and forward mode differentiate the formula alone, backend="reference"'
    return None


def differentiated_once(out: torch.Tensor) -> torch.Tensor:
    """`out`, what a kernel computed: a graph of its gradient (create_graph=True) is refused, with the way round."""
    if not out.requires_grad or traced():
        return out
    return _Once.apply(out)  # type: ignore[no-any-return]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: torch.Tensor) -> torch.Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "the kernels of attention are differentiated once; for second derivatives (create_graph=True) use "
                'attend(..., backend="reference")'
            )
        return grad


def traced() -> bool:
    """Whether tensors cannot be read: inside torch.compile, or a transform of torch.func."""
    return torch.compiler.is_compiling() or transformed()


def is_known(condition: bool | torch.SymBool) -> bool:
    """Whether a comparison of sizes is true for all sizes that a trace stands for; the trace gets no condition."""
    if isinstance(condition, bool) and not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports a compiler

    return statically_known_true(condition)


def readable(x: torch.Tensor) -> bool:
    """Whether the numbers of a tensor are there to be read: not in a trace, of a fake tensor or on the meta device."""
    if traced() or x.device.type == "meta":
        return False
    return plain(x) or detect_fake_mode((x,)) is None


def plain(*tensors: torch.Tensor) -> bool:
    """Whether a kernel may be called without the dispatcher: nothing traces the call, observes it, or wraps tensors."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return all(type(x) in _PLAIN for x in tensors)


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Autocast switched off: inputs were cast on the way in, and energies are held in float32 at least."""
    if not torch.compiler.is_compiling() and device.type in AUTOCAST and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type if device.type in AUTOCAST else "cpu", enabled=False)


AUTOCAST = frozenset({"cpu", "cuda", "xpu", "mps"})


def grid(batch: tuple[int, ...], queries: int, keys: int, device: torch.device) -> tuple[Batch, Tensor, Tensor]:
    """Index tensors of the whole matrix, each with its own dimension: they broadcast to [*batch, q, k]."""
    dims = len(batch) + 2
    leading = tuple(
        torch.arange(n, device=device).view(*[-1 if d == axis else 1 for d in range(dims)])
        for axis, n in enumerate(batch)
    )
    return leading, torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)


def positions(index: Index, device: torch.device) -> Tensor:
    """The indices as a tensor [n]. Slices have a start and a stop, because `slice.indices` cannot be compiled."""
    return torch.arange(index.start, index.stop, device=device) if isinstance(index, slice) else index


def span(indices: Sequence[int], device: torch.device) -> Index:
    """A slice where the indices are a range, so that indexing gives a view; else a tensor."""
    if isinstance(indices, range) and indices.step == 1:
        return slice(indices.start, indices.stop)
    return torch.tensor(indices, dtype=torch.int64, device=device)


def unravel(index: Tensor, batch: tuple[int, ...]) -> Batch:
    """Index tensors [n, 1, 1] into each leading dimension, from indices [n] into all of them flattened."""
    return tuple(part[:, None, None] for part in digits(index, batch))


def digits(index: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The indices into each of several dimensions, from an index into all of them flattened."""
    parts: list[Tensor] = []
    for size in reversed(sizes):
        parts.append(index % size)
        index = index // size
    return parts[::-1]


def at_each_index(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of scalars at every entry of tensors that broadcast: `torch.vmap` over each of their dimensions.

    FlexAttention calls `mask_mod` and `score_mod` in the same way, so what they may contain is the same.
    """
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if not shape:
        return function(*tensors)
    wide = [x.reshape(*[1] * (len(shape) - x.dim()), *x.shape) for x in tensors]
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1:
            function = torch.vmap(function, tuple(0 if x.shape[dim] > 1 else None for x in wide))
    own = [x.reshape([n for n in x.shape if n > 1]) for x in wide]
    with _ScalarIndices() if torch.compiler.is_exporting() else nullcontext():
        return function(*own).reshape(shape)


class _ScalarIndices(TorchFunctionMode):
    """`table[i]` with scalars i as an index operation: torch.export would read their numbers, which vmap refuses."""

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(x, torch.Tensor) for x in index):
                return torch.ops.aten.index.Tensor(args[0], index)
        return function(*args, **(kwargs or {}))


def batch_and_head(batch: Batch, like: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention's b and h from at most two leading indices; 0 for those that there are not."""
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    b, h = (*batch, *[zero] * (2 - len(batch)))
    return b, h


def check_batch_and_head(what: str, batch: tuple[int, ...]) -> None:
    if len(batch) > 2:
        raise ValueError(
            f"{what} takes one batch index and one head index, for inputs [B, heads, T, D]; the leading shape is "
            f"{list(batch)}. Flatten it to two dimensions"
        )


def pick(tensor: Tensor, batch: Batch, i: Tensor, j: Tensor) -> Tensor:
    """Entries of a tensor that broadcasts to [*batch, q, k], at these indices."""
    check_device("a mask or bias", tensor, i.device)
    leading = tensor.shape[:-2]
    indices = [*(batch[len(batch) - len(leading) :]), i, j]
    # A dimension of size one is broadcast.
    return tensor[tuple(x if n > 1 else torch.zeros_like(x) for n, x in zip(tensor.shape, indices, strict=True))]


def check_device(what: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{what} is on {tensor.device}, the inputs are on {device}; move it with .to({str(device)!r})")


def fits(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to exactly `full`."""
    return len(shape) <= len(full) and all(n in (1, m) for n, m in zip(reversed(shape), reversed(full), strict=False))


def select(index: int | slice | Sequence[int], among: Sequence[int], what: str) -> Sequence[int]:
    """The entries of `among` at an index, slice or list of indices, which may be negative as in Python."""
    if isinstance(index, slice):
        selected: Sequence[int] = among[index]
    else:
        indices = [index] if isinstance(index, int) else list(index)
        wrong = [x for x in indices if not -len(among) <= x < len(among)]
        if wrong:
            raise IndexError(f"{what} {wrong[0]} is out of range: there are {len(among)}")
        selected = as_range([among[x] for x in indices])
    if not len(selected) and len(among):
        raise IndexError(f"no {what} chosen: {index} of {len(among)}")
    return selected


def as_range(indices: list[int]) -> Sequence[int]:
    """A range where the indices are consecutive, so that indexing gives a view."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def brief(tensor: Tensor) -> str:
    """The values of a small tensor, the type and shape of a large one."""
    return str(tensor.tolist()) if tensor.numel() <= 8 and readable(tensor) else f"{tensor.dtype} {list(tensor.shape)}"


class ChangedInPlaceError(RuntimeError):
    """A tensor that a result depends on was changed in place, so the result can no longer be computed."""


class TensorVersions:
    """The versions of some tensors at one moment, by which a change in place is noticed."""

    def __init__(self, tensors: Iterable[Tensor], versions: Iterable[Version] | None = None) -> None:
        """`versions` are those of an earlier moment; by default it is now."""
        self.tensors = list(tensors)
        self._versions = [version_of(x) for x in self.tensors] if versions is None else list(versions)

    def require_unchanged(self, consequence: str) -> None:
        """Raise where one of the tensors was changed; `consequence` says what cannot be computed then."""
        if self.changed():
            raise ChangedInPlaceError(
                "queries, keys, values, the mask or a tensor that the energy or normalizer uses was changed in place "
                f"since attend() was called, {consequence}"
            )

    def changed(self) -> bool:
        return any(version != version_of(x) for x, version in zip(self.tensors, self._versions, strict=True))


class Fingerprint:
    """One whole number per row of a tensor, from its bits and their places: which rows changed, in O(T · D) time."""

    __slots__ = ("rows",)

    def __init__(self, x: Float[Tensor, "*rows d"]) -> None:
        x = torch.view_as_real(x.detach()).flatten(-2) if x.is_complex() else x.detach()
        bits = x.view(BITS[x.element_size()])
        # Products and sums of whole numbers are exact in any order. Odd factors: none of them takes a bit away.
        factors = _odd_numbers(bits.shape[-1], torch.promote_types(bits.dtype, torch.int32), bits.device)
        self.rows: Int[Tensor, " *rows"] = (bits * factors).sum(-1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and torch.equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]


BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Version = int | Fingerprint | None


@functools.lru_cache(maxsize=256)
def _odd_numbers(count: int, dtype: torch.dtype, device: torch.device) -> Int[Tensor, " count"]:
    with torch.inference_mode(False):
        return (2 * torch.arange(count, device=device) + 1).to(dtype)


def version_of(x: Tensor) -> Version:
    """How often a tensor was changed in place, by its version counter. An inference tensor has none: a fingerprint.

    None for one that has neither, because it exists only while it is traced.
    """
    if torch.compiler.is_compiling():
        return None
    return fingerprint(x) if x.is_inference() else x._version


def versions_of(tensors: Iterable[Tensor]) -> list[Version]:
    """The same of several, outside `torch.compile`."""
    return [fingerprint(x) if x.is_inference() else x._version for x in tensors]


def fingerprint(x: Tensor) -> Fingerprint | None:
    """None for tensors without numbers: of a subclass, of a meta device, sparse or nested."""
    plain = type(x) in (Tensor, nn.Parameter) and x.layout == torch.strided and not x.is_nested and not x.is_meta
    return Fingerprint(x if x.dim() else x[None]) if plain else None


def _names_used(function: Callable[..., Any]) -> list[Any]:
    """What a function reads: its closure, its defaults and the globals that it names."""
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return []
    used = [*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values()]
    used += [plain.__globals__[name] for name in code.co_names if name in plain.__globals__]
    for cell in plain.__closure__ or ():
        try:
            used.append(cell.cell_contents)
        except ValueError:
            continue  # not assigned yet
    return used


def plain_values(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """The numbers and words that a function reads beside tensors; None where it reads something else, whose state
    nobody can compare with what it was."""
    if not isinstance(function, FunctionType):
        return None
    values: list[Any] = []
    for x in _names_used(function):
        if isinstance(x, FunctionType):
            own = plain_values(x) if x is not function else ()
            if own is None:
                return None
            values += own
        elif isinstance(x, int | float | str | None):
            values.append(x)
        elif not isinstance(x, Tensor | ModuleType | BuiltinFunctionType):
            return None
    return tuple(values)


def function_tensors(function: Callable[..., Any]) -> list[Tensor]:
    """Tensors in its closure, its defaults and the globals that it names, and in the object whose method it is.

    Of a module among these they are its parameters, of another object the tensors that are its attributes.
    """
    holders: list[Any] = [function, getattr(function, "__self__", None), *_names_used(function)]
    tensors: dict[int, Tensor] = {}
    for x in holders:
        own = [x] if isinstance(x, Tensor) else x.parameters() if isinstance(x, nn.Module) else _attributes(x)
        tensors.update((id(tensor), tensor) for tensor in own)
    return list(tensors.values())


def _attributes(x: object) -> list[Tensor]:
    if isinstance(x, type) or not hasattr(x, "__dict__"):
        return []
    return [value for value in vars(x).values() if isinstance(value, Tensor)]


_CLASSES: dict[str, type[Part]] = {}
"""Parts by the name a trace gives them. Only classes that are already defined are rebuilt: no code is imported."""


class UnknownPartError(ValueError):
    """A trace names a class that is not defined in this process."""


class Part:
    """Base class. `opaque`, `kernel` and `trace_key` are not inherited: a subclass may compute something else."""

    opaque: ClassVar[bool] = True
    """Whether it may do more than its tensors say: close over parameters, draw random numbers, return its input."""
    kernel: ClassVar[str | None] = None
    """The name under which kernels know this formula."""
    trace_key: ClassVar[str | None] = None
    """The short form in trace.json, {key: first setting}, instead of {"kind": class}."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("opaque", "kernel", "trace_key"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(Part, name))
        _CLASSES[cls.trace_key or _kind(cls)] = cls

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return {name: getattr(self, name) for name in _argument_names(type(self))}  # type: ignore[arg-type]

    def tensors(self) -> list[Tensor]:
        """The tensors it holds, those of parts inside it included."""
        tensors: list[Tensor] = []
        for x in self.arguments().values():
            if isinstance(x, Tensor):
                tensors.append(x)
            elif isinstance(x, Part):
                tensors += x.tensors()
        return tensors

    def function_tensors(self) -> list[Tensor]:
        """The tensors that functions it holds use. They are not its own: `map_tensors` leaves them as they are."""
        if not self.opaque:
            return []
        tensors: list[Tensor] = []
        for x in self.arguments().values():
            if isinstance(x, Part):
                tensors += x.function_tensors()
            elif callable(x) and not isinstance(x, Tensor):
                tensors += function_tensors(x)
        return tensors

    def plain_values(self) -> tuple[Any, ...] | None:
        """The numbers that functions it holds read; None where one reads what cannot be compared later."""
        values: list[Any] = []
        for x in self.arguments().values() if self.opaque else ():
            held = isinstance(x, Part) or (callable(x) and not isinstance(x, Tensor))
            own = () if not held else x.plain_values() if isinstance(x, Part) else plain_values(x)
            if own is None:
                return None
            values += own
        return tuple(values)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same part with `function` applied to each of its tensors."""
        new: dict[str, Any] = {}
        for name, x in self.arguments().items():
            if isinstance(x, Tensor):
                new[name] = function(x)
            elif isinstance(x, Part):
                new[name] = x.map_tensors(function)
        if not new:
            return self
        part = copy(self)
        for name, x in new.items():
            object.__setattr__(part, name, x)  # parts may be frozen
        return part

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor that are no tensors."""
        return {name: x for name, x in self.arguments().items() if not isinstance(x, Tensor)}

    def describe(self, at: int | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Its settings as JSON has them, and its tensors by name. `at` numbers the modifiers of one energy."""
        tensors = {name: x for name, x in self.arguments().items() if isinstance(x, Tensor)}
        settings = self.settings()
        for name, x in settings.items():
            if isinstance(x, Part):
                settings[name], inner = x.describe()
                tensors |= {f"{name}.{key}": tensor for key, tensor in inner.items()}
            elif not _is_plain(x):
                raise ValueError(
                    f"{type(self).__name__} has {name} = {x!r}, which is no tensor, number, string or list"
                )
        place, key = _place(at), self.trace_key
        if key is None:
            kind = _kind(type(self))
            return {"kind": kind, **settings}, {f"{kind}{place}.{name}": x for name, x in tensors.items()}
        value = settings.pop(next(iter(settings))) if settings else (True if at is None else at)
        return {key: value, **settings}, dict.fromkeys([key + place], *tensors.values()) if tensors else {}

    @classmethod
    def rebuild(cls, description: Mapping[str, Any], tensors: Mapping[str, Tensor], at: int | None = None) -> Self:
        """The part that `describe` described."""
        settings, place = dict(description), _place(at)
        key = next((name for name in settings if name != "kind" and name in _CLASSES), None)
        kind = settings.pop("kind", key)
        part: Any = _CLASSES.get(kind)
        if part is None or not issubclass(part, cls):
            raise UnknownPartError(
                f"{kind!r} is no {cls.__name__} that is defined here; import the module that defines it first"
            )
        if part.trace_key is None:
            prefix = f"{kind}{place}."
            own = {name[len(prefix) :]: x for name, x in tensors.items() if name.startswith(prefix)}
            for name, x in settings.items():
                if isinstance(x, dict):  # a part inside it
                    inner = {key[len(name) + 1 :]: own.pop(key) for key in list(own) if key.startswith(f"{name}.")}
                    settings[name] = Part.rebuild(x, inner)
            return part(**settings, **own)  # type: ignore[no-any-return]
        first = settings.pop(part.trace_key)
        if not _argument_names(part):
            return part()  # type: ignore[no-any-return]
        return part(tensors.get(part.trace_key + place, first), **settings)  # type: ignore[no-any-return]


@cache
def _argument_names(part: type[Part]) -> tuple[str, ...]:
    code = getattr(part.__init__, "__code__", None)
    return () if code is None else code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


def _kind(part: type[Part]) -> str:
    """Ours by name, a user's by module and name."""
    return part.__name__ if _is_ours(part) else f"{part.__module__}.{part.__qualname__}"


def _is_ours(part: type[Part]) -> bool:
    return part.__module__.partition(".")[0] == __name__.partition(".")[0]


_NUMBERS = (bool, int, float, str)


def _place(at: int | None) -> str:
    return "" if at is None else f".{at}"


def _is_plain(x: object) -> bool:
    if isinstance(x, list | tuple):
        return all(_is_plain(item) for item in x)
    return x is None or isinstance(x, _NUMBERS)


def positive(what: str, value: object, hint: str = "") -> None:
    """Raise unless the value is a number > 0. Not every backend could use a learned one."""
    if not isinstance(value, int | float):
        raise TypeError(f"{what} is a number, got {type(value).__name__}; to learn one, multiply the queries by it")
    if not value > 0:
        raise ValueError(f"{what} must be > 0, got {value}{hint}")


def whole(what: str, value: object) -> None:
    """Raise unless the value is a whole number, or the symbol of one, as sizes are under torch.export."""
    if not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{what} is a whole number, got {value!r}")


def depends_on_place(beside: Tensor, alone: Tensor, again: Tensor) -> bool:
    """Whether a user's function gives one row other numbers `beside` others than `alone`, as it must not in blocks.

    A function that draws random numbers gives others `again`: a few of them prove nothing.
    """
    if not torch.isclose(alone, again, equal_nan=True).all():
        return False
    # Rounding moves numbers by far less than a thousandth of the largest; a place moves them by more.
    rounding = 1e-3 * float(beside.nan_to_num(0, 0, 0).abs().amax())
    return not torch.isclose(beside, alone, rtol=0, atol=rounding, equal_nan=True).all()


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with this many arguments by position."""
    # A module's own __call__ takes anything; what it passes on to says more.
    target = type(function).forward if isinstance(function, nn.Module) else function
    code = getattr(target, "__code__", None)
    if code is None:
        return _binds(target, count)
    # What inspect.signature does, in terms that torch.compile can trace.
    bound = isinstance(function, nn.Module) or getattr(function, "__self__", None) is not None
    most = code.co_argcount - bound
    least = most - len(target.__defaults__ or ())
    named = 0
    if code.co_kwonlyargcount:  # torch.compile cannot read the defaults of a function that it has just made
        named = code.co_kwonlyargcount - len(target.__kwdefaults__ or ())
    return named == 0 and least <= count and (count <= most or bool(code.co_flags & inspect.CO_VARARGS))


def argument_name(function: Callable[..., Any], at: int) -> str | None:
    """The name of an argument by position; None where there is none, or it is not known."""
    target = type(function).forward if isinstance(function, nn.Module) else function
    code = getattr(target, "__code__", None)
    if code is None:
        return None
    at += isinstance(function, nn.Module) or getattr(function, "__self__", None) is not None
    return code.co_varnames[at] if at < code.co_argcount else None


def _binds(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):  # other arguments; or written in C, without a signature
        return False
    return True
