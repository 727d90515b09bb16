"""Annotations prepared for a loop that looks at them once per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import Additive, Concat, Dot, General
from ...attention.listeners import listeners, tell_energies
from ...attention.torch_transforms import plain
from .deferred_gradient import DeferredLinear
from .loop_additive import Scores

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    Energies = Additive | Concat | General | Dot


def query_matrix(energy: Energies) -> Float[Tensor, "d width"] | None:
    """What a query is multiplied with before it meets the keys; None where nothing is."""
    if isinstance(energy, Additive):
        return energy.query.weight
    if isinstance(energy, Concat):
        return energy.joint.weight[:, : energy.dim_q]
    return energy.weight.mT if isinstance(energy, General) else None


class EncoderMemory:
    """Keys and values of a batch of sentences; `look` is z = softmax(energy(q, k)) · v for queries already projected.

    `attend` says the same for a whole matrix of queries. A loop asks for one at a time, so the keys are projected
    here, once, and their gradients are computed once, when the loop is done. Unless `values` are given, the vectors
    that make the keys are the values too.
    """

    def __init__(
        self,
        energy: Energies,
        vectors: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
        *,
        values: Float[Tensor, "batch places values"] | None = None,
    ) -> None:
        if lengths.device.type == "cpu" and plain(lengths) and bool((lengths < 1).any()):
            raise ValueError(
                f"every sentence needs at least one place to look at; the shortest has {int(lengths.min())}"
            )
        if isinstance(energy, Additive | Concat):
            matrix = energy.key.weight if isinstance(energy, Additive) else energy.joint.weight[:, energy.dim_q :]
            keys = torch.nn.functional.linear(vectors, matrix.to(vectors.dtype))
            self._energies: Scores | DeferredLinear = Scores(keys, energy.weight.to(keys.dtype))
        else:
            self._energies = DeferredLinear(vectors)
        self.vectors = vectors if values is None else values  # what is averaged
        self._mix = DeferredLinear(self.vectors.mT)  # [batch, width, places]: p ↦ p V
        self.lengths = lengths
        self.places = torch.arange(vectors.shape[1], device=vectors.device)
        # −∞ on padding, added to the energies.
        self._closed = torch.zeros(vectors.shape[:2], device=vectors.device).masked_fill_(
            self.places >= lengths[:, None], -torch.inf
        )[:, None]  # [batch, 1, places]

    def energies(
        self, q: Float[Tensor, "batch queries d"], closed: Float[Tensor, "batch queries places"] | None = None
    ) -> Float[Tensor, "batch queries places"]:
        """energy(q, k), −∞ on padding; `closed` (0 or −∞) is added."""
        return self._energies(q) + (self._closed if closed is None else self._closed + closed)

    def mix(self, weights: Float[Tensor, "batch queries places"]) -> Float[Tensor, "batch queries width"]:
        """Σ_j w_j v_j."""
        return self._mix(weights)

    def look(
        self,
        q: Float[Tensor, "batch queries d"],
        *,
        closed: Float[Tensor, "batch queries places"] | None = None,
        scale: Float[Tensor, "batch queries places"] | None = None,
    ) -> tuple[Float[Tensor, "batch queries width"], Float[Tensor, "batch queries places"]]:
        """Context and weights. `closed` is added to the energies (0 or −∞), `scale` multiplies the weights."""
        e = self.energies(q, closed)
        p = torch.softmax(e, dim=-1, dtype=torch.promote_types(e.dtype, torch.float32))
        if scale is not None:
            p = p * scale
        z = self.mix(p)
        if listeners and scale is None:  # scaled weights do not sum to one: no softmax, so not what a watch can show
            tell_energies(e, self.vectors, z)
        return z, p

    def select(self, rows: Int[Tensor, "chosen"]) -> EncoderMemory:
        """The same for these sentences."""
        chosen = object.__new__(EncoderMemory)
        chosen._energies, chosen._mix = self._energies.select(rows), self._mix.select(rows)
        chosen.lengths, chosen.places, chosen._closed = self.lengths[rows], self.places, self._closed[rows]
        chosen.vectors = self.vectors[rows]
        return chosen
