"""The tap of `regard.attend`; and `note`, which makes any other function visible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ....attention import ScaledDot, Softmax
from ....attention.listeners import listeners, notify
from ....attention.request import make_request
from .. import call_routing
from ..call_inputs_and_output import Record
from .patching import Tap

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from ....attention import Mask
    from ....attention.attend import AnyEnergy, AnyNormalizer
    from ....attention.masks.mask import MaskFunction
    from ....attention.request import Request
    from ...recorder import CapturedCall

_SCALED_DOT, _SOFTMAX = ScaledDot(), Softmax()


def _report(request: Request, out: Tensor, state: Tensor | None, replaceable: bool) -> Tensor:
    """A listener of `attend`: reports what it computed, and changes it where an intervention asks for that."""
    if not call_routing.is_active():
        return out
    energies = request.energies
    a, b, mask, normalize = energies.a, energies.b, energies.mask, request.normalize
    fixed = () if mask is None else mask.tensors()
    learned = [*energies.learned(), *normalize.tensors(), *normalize.function_tensors(), *fixed]
    if any(x.grad_fn is not None for x in learned):  # computed ones keep their graph alive; parameters have none
        energies, normalize = energies.map_learned(Tensor.detach), normalize.map_tensors(Tensor.detach)
        learned = [*energies.learned(), *normalize.tensors(), *normalize.function_tensors(), *fixed]
    if a.requires_grad or b.requires_grad:
        energies = replace(energies, a=a.detach(), b=b.detach())
    details = energies, normalize, request.dropout
    call_routing.try_capture(
        _record, a, b, request.v, out, state=state, learned=tuple(learned), details=details, is_note=not replaceable
    )
    for ablation, name in call_routing.ablations_of(None):
        ablation.check_maskless(name, "a call of regard.attend or regard.note", 1 < a.shape[-2] != b.shape[-2])
        if replaceable:
            ablation.check_head_axis(name, out)
            out = ablation.output(name, out, dim=-3)
    return out


def _record(call: CapturedCall) -> Record:
    energies, normalize, dropout = call.details
    energies = replace(energies, a=call.q, b=call.k)
    return Record(energies, call.v, call.out, "regard.attend", normalize, call.state, dropout, rows=call.rows)


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

    The arguments are those of `attend`. It costs nothing while no watch is open. `ablate` and `effects` cannot change
    `out`, with which your code goes on: to them this is no attention that could be changed.
    """
    if call_routing.watches or call_routing.ablations:
        request = make_request(q, k, v, energy, normalize, mask, dropout, weights=True)
        notify(request, out, None, replaceable=False)


TAP = Tap("regard.attend", on_install=lambda: listeners.append(_report), on_remove=lambda: listeners.remove(_report))
