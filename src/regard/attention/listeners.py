"""Listeners: functions that see every call of `attend` and may replace its output. Usually there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .energies.lazy_energy_matrix import EnergyMatrix
from .normalizers.softmax import Softmax
from .request import Request
from .torch_transforms import traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float
    from torch import Tensor

    from .energies.energy_forms import EnergyForm
    from .masks.mask import Mask
    from .normalizers.normalizer import Normalizer

    Listener = Callable[[Request, Tensor, Tensor | None, bool], Tensor]
    """Gets a request, its output, the row state, and whether the caller goes on with the output that it returns."""

listeners: list[Listener] = []


def notify(request: Request, output: Tensor, state: Tensor | None, *, replaceable: bool = True) -> Tensor:
    """Pass a request and its result to every listener; not inside torch.compile and torch.func, which only trace.

    Returns the output, which a listener may have replaced. A caller that goes on with its own output says
    `replaceable=False`.
    """
    if listeners and not traced():
        for listener in tuple(listeners):
            output = listener(request, output, state, replaceable)
    return output


def notify_step(
    a: Float[Tensor, "*batch q d"],
    b: Float[Tensor, "*batch k d"],
    form: EnergyForm,
    v: Float[Tensor, "*batch k d_v"],
    output: Float[Tensor, "*batch q d_v"],
    *,
    mask: Mask | None = None,
    normalize: Normalizer | None = None,
    state: Float[Tensor, "*batch q"] | None = None,
) -> None:
    """`notify` for one step of a recurrent loop, from projected queries and keys; softmax is the default."""
    energies = EnergyMatrix(a, b, form, tuple(a.shape[:-2]), (), mask)
    notify(Request(energies, v, normalize or Softmax(), 0.0, weights=True), output, state, replaceable=False)
