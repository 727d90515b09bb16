"""Part: what energy forms, modifiers, normalizers and masks have in common.

A part is made of the arguments of its constructor, kept as attributes of the same names. From these it lists and maps
its tensors, describes itself for a trace, and is rebuilt. A subclass gets all of it without a line of its own.
"""

from __future__ import annotations

import inspect
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def function_tensors(function: Callable[..., Any]) -> list[Tensor]:
    """Tensors in its closure, its defaults and the globals that it names, and in the object whose method it is.

    Of a module among these they are its parameters, of another object the tensors that are its attributes.
    """
    holders: list[Any] = [function, getattr(function, "__self__", None)]
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is not None:
        holders += [*(plain.__defaults__ or ()), *(plain.__kwdefaults__ or {}).values()]
        holders += [plain.__globals__[name] for name in code.co_names if name in plain.__globals__]
        for cell in plain.__closure__ or ():
            try:
                holders.append(cell.cell_contents)
            except ValueError:
                continue  # not assigned yet
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
        return {name: getattr(self, name) for name in _argument_names(type(self))}

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
