"""The tap of softmax, for modules that compute attention by hand: the weights are kept as a whole matrix.

Such a model stores the matrix anyway. The output of attention is not seen, so fidelity is not measured.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from ....attention import Bias, Proportional
from ....attention.energies.energy_forms import DotForm
from ....attention.energies.lazy_energy_matrix import EnergyMatrix
from .. import call_routing
from ..call_inputs_and_output import Record
from .patching import Replacement, Tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ATTENTION_NAME = re.compile(r"attn|attention|\batt\b|_att\b|\batt_")


def _softmax(
    original: Callable[..., Tensor], input: Tensor, dim: int | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    with call_routing.suspend_reports():  # F.softmax may call the others
        weights = original(input, dim, *args, **kwargs)
    ours = sys._getframe(2).f_globals.get("__name__", "").startswith("regard.")  # attend reports its own calls
    if input.dim() in (3, 4) and dim in (-1, input.dim() - 1) and not ours:
        interface_call = call_routing.thread_state.interface_call
        if interface_call is not None:
            interface_call.weights = weights
            return weights
        call_routing.try_report(
            lambda: record_of_weights(weights), name_filter=lambda name: bool(ATTENTION_NAME.search(name.lower()))
        )
    return weights


def record_of_weights(weights: Tensor, origin: str = "softmax in its own code") -> Record:
    """A record of weights without queries and keys: energies of 0, the weights as a bias, and w = w / Σw."""
    w = weights.detach()
    *batch, queries, keys = w.shape
    zeros = w.new_zeros(1).expand
    energies = EnergyMatrix(
        zeros(*batch, queries, 1), zeros(*batch, keys, 1), DotForm(), tuple(batch), modifiers=(Bias(w),)
    )
    v, out = w.new_empty(*batch, keys, 0), w.new_empty(*batch, queries, 0)
    return Record(energies, v, out, origin, normalize=Proportional())


TAP = Tap(
    "a softmax in an attention module",
    lambda: [Replacement(owner, "softmax", _softmax) for owner in (F, torch, torch.Tensor)],
)
