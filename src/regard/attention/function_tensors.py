"""The tensors that a function uses, as far as a look at it tells: functions that it calls are not followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


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
