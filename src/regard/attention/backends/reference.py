"""The formula, written to be read: e = energy(q, k), w = normalize(e), z = w v. It defines what is correct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import dropout

from ..blocks import exact

if TYPE_CHECKING:
    from torch import Tensor

    from ..request import Request


def refusal(request: Request) -> str | None:
    return None


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    energies, normalize = request.energies, request.normalize
    v = energies.per_query_head(request.v)
    e = energies.whole(absent=normalize.absent)  # [..., T_q, T_k]
    normalize.check_rows(lambda: e)
    with exact(e.device):
        w, state = normalize.both(e) if request.weights else (normalize(e), None)
        w = dropout(w, request.dropout) if request.dropout else w
        z = w @ v.to(w.dtype)  # [..., T_q, D_v]
    return z.to(v.dtype), state
