"""Who is told about calls of `attend`: whoever watches. As a rule nobody, and then it is a look at an empty list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .torch_transforms import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from .normalizers.normalizer import Normalizer
    from .request import Request

    Listener = Callable[[Request, Tensor, Tensor | None], None]

listeners: list[Listener] = []


def notify(request: Request, output: Tensor, state: Tensor | None) -> None:
    """Say what was computed from what. Inside torch.compile and torch.func nothing real can be handed over."""
    if listeners and not traced():
        for listener in tuple(listeners):
            listener(request, output, state)


def tell_energies(
    e: Float[Tensor, "*batch q k"],
    v: Float[Tensor, "*batch k d_v"],
    output: Tensor,
    normalize: Normalizer | None = None,
    state: Float[Tensor, "*batch q"] | None = None,
) -> None:
    """The same for energies at hand, as a loop has them: one query a step, and T of them in all.

    `normalize` is softmax unless given, with the row state it left.
    """
    from .energy_forms import DotForm
    from .energy_matrix import EnergyMatrix
    from .modifiers import Bias
    from .normalizers.normalizer import Softmax
    from .request import Request

    nothing = e.detach().new_zeros(1)
    batch, queries, keys = tuple(e.shape[:-2]), e.shape[-2], e.shape[-1]
    a, b = nothing.expand(*batch, queries, 1), nothing.expand(*batch, keys, 1)
    energies = EnergyMatrix(a, b, DotForm(), batch, (Bias(e.detach()),))
    notify(Request(energies, v, normalize or Softmax(), 0.0, weights=True), output, state)
