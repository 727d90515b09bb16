"""Who is told about calls of `attend`: whoever watches. As a rule nobody, and then it is a look at an empty list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .transforms import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from .request import Request

    Listener = Callable[[Request, Tensor, Tensor | None], None]

listeners: list[Listener] = []


def tell(request: Request, output: Tensor, state: Tensor | None) -> None:
    """Say what was computed from what. Inside torch.compile and torch.func nothing real can be handed over."""
    if listeners and not traced():
        for listener in tuple(listeners):
            listener(request, output, state)
