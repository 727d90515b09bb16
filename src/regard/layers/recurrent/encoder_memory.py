"""Encoder memory: annotations prepared for a loop that attends to them at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...attention import dense, padding
from ...attention.energies.energy_forms import TanhForm
from ...attention.listeners import listeners, notify_step
from ...attention.torch_transforms import plain
from .deferred_gradient import DeferredLinear
from .loop_additive import LoopAdditive

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...attention import Dot, Normalizer
    from ...attention.energies.learned_energies import LearnedEnergy


class EncoderMemory:
    """Keys and values of a batch of sentences; `attend` is z = softmax(energy(q, k)) · v for projected queries.

    `regard.attend` computes the same for a whole matrix of queries. A loop has one query at a time, so the keys are
    projected here once, and their gradients are computed once, after the loop. Unless `values` are given, the vectors
    are both keys and values.
    """

    def __init__(
        self,
        energy: LearnedEnergy | Dot,
        vectors: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
        *,
        values: Float[Tensor, "batch places values"] | None = None,
    ) -> None:
        if lengths.device.type == "cpu" and plain(lengths) and bool((lengths < 1).any()):
            raise ValueError(f"every sentence needs at least one place to attend to; the shortest has {lengths.min()}")
        no_query = vectors.new_empty(len(vectors), 0, getattr(energy, "dim_q", vectors.shape[-1]))
        _, self.keys, self.form = energy.split(no_query, vectors)
        if isinstance(self.form, TanhForm):
            self._energies: LoopAdditive | DeferredLinear = LoopAdditive(
                self.keys, self.form.weight.to(self.keys.dtype)
            )
        else:
            self._energies = DeferredLinear(self.keys)
        self.values = vectors if values is None else values
        self._mix = DeferredLinear(self.values.mT)  # [batch, width, places]: p ↦ p V
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

    def attend(
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
        if scale is None:  # scaled weights do not sum to one: no normalizer describes them
            self.notify(q, z, closed=closed)
        return z, p

    def notify(
        self,
        q: Float[Tensor, "batch queries d"],
        z: Float[Tensor, "batch queries width"],
        *,
        closed: Float[Tensor, "batch queries places"] | None = None,
        normalize: Normalizer | None = None,
        state: Float[Tensor, "batch queries"] | None = None,
    ) -> None:
        """Report a step to whoever watches."""
        if not listeners:
            return
        mask = padding(self.lengths) if bool((self.lengths < len(self.places)).any()) else None
        if closed is not None:
            window = dense(closed == 0)
            mask = window if mask is None else mask & window
        a = q.to(self.keys.dtype)
        notify_step(a, self.keys, self.form, self.values, z, mask=mask, normalize=normalize, state=state)

    def select(self, rows: Int[Tensor, "chosen"]) -> EncoderMemory:
        """The same for these sentences."""
        chosen = object.__new__(EncoderMemory)
        chosen._energies, chosen._mix = self._energies.select(rows), self._mix.select(rows)
        chosen.lengths, chosen.places, chosen._closed = self.lengths[rows], self.places, self._closed[rows]
        chosen.keys, chosen.form, chosen.values = self.keys[rows], self.form, self.values[rows]
        return chosen
