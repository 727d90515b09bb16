"""The formula, written to be read: e = energy(q, k), w = normalize(e), z = w v. It defines what is correct."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..parts import exact

if TYPE_CHECKING:
    from torch import Tensor

    from ..energy_matrix import EnergyMatrix
    from ..normalizers import Normalizer


def refusal(energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float) -> str | None:
    return None


def run(
    energies: EnergyMatrix, normalize: Normalizer, v: Tensor, dropout: float, weights: bool
) -> tuple[Tensor, Tensor | None]:
    v = energies.per_query_head(v)
    e = energies.whole(absent=normalize.absent)  # [..., T_q, T_k]
    normalize.check_rows(lambda: e)
    with exact(e.device):
        w, state = normalize.both(e) if weights else (normalize(e), None)
        w = torch.dropout(w, dropout, train=True) if dropout else w
        z = w @ v.to(w.dtype)  # [..., T_q, D_v]
    return z.to(v.dtype), state
