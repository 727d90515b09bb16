"""The tap of `regard.attend`; and `note`, which makes any other function visible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....attention import ScaledDot, Softmax
from ....attention.listeners import listeners, notify
from ....attention.request import make_request
from .. import call_routing
from ..call_inputs_and_output import Record
from ..output_gradients import GraphOutput
from .patching import Tap

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from ....attention import Mask
    from ....attention.attend import AnyEnergy, AnyNormalizer
    from ....attention.masks.mask import MaskFunction
    from ....attention.request import Request

_SCALED_DOT, _SOFTMAX = ScaledDot(), Softmax()


def _report(request: Request, out: Tensor, state: Tensor | None) -> None:
    """A listener of `attend`: reports what it computed."""
    if not call_routing.is_active():
        return
    energies = replace(request.energies, a=request.energies.a.detach(), b=request.energies.b.detach())
    record = Record(
        energies,
        request.v.detach(),
        out.detach(),
        "regard.attend",
        normalize=request.normalize,
        state=None if state is None else state.detach(),
        dropout=request.dropout,
    )
    call_routing.report(record, output=GraphOutput(out))


def note(
    q: Float[Tensor, "*batch q d_q"],
    k: Float[Tensor, "*batch k d_k"],
    v: Float[Tensor, "*batch k d_v"],
    out: Float[Tensor, "*batch q d_v"],
    *,
    energy: AnyEnergy = _SCALED_DOT,
    normalize: AnyNormalizer = _SOFTMAX,
    mask: Mask | Bool[Tensor, "..."] | MaskFunction | None = None,
    dropout: float = 0.0,
) -> None:
    """Report an attention computed by your own code, so that `watch` can see it.

        out = my_kernel(q, k, v)
        regard.note(q, k, v, out, mask=causal())

    The arguments are those of `attend`. It costs nothing while no watch is open.
    """
    if call_routing.watches:
        notify(make_request(q, k, v, energy, normalize, mask, dropout, weights=True), out, None)


TAP = Tap("regard.attend", on_install=lambda: listeners.append(_report), on_remove=lambda: listeners.remove(_report))
