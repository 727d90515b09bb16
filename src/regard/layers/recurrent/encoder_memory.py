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
    from ...attention.energies.energy_forms import EnergyForm
    from ...attention.energies.learned_energies import LearnedEnergy


class EncoderMemory:
    """Projected keys, and values, of a batch of sentences; `attend` is z = softmax(energy(q, k)) · v.

    `regard.attend` computes the same for a whole matrix of queries. A loop has one projected query at a time, so
    the keys are projected once, by `project`, and their gradients are computed once, after the loop.
    """

    def __init__(
        self,
        keys: Float[Tensor, "batch places d"],
        form: EnergyForm,
        values: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
    ) -> None:
        self.keys, self.form, self.values, self.lengths = keys, form, values, lengths
        self._energies: LoopAdditive | DeferredLinear = (
            LoopAdditive(keys, form.weight.to(keys.dtype)) if isinstance(form, TanhForm) else DeferredLinear(keys)
        )
        self.mix = DeferredLinear(values.mT)  # p ↦ p V: Σ_j p_j v_j
        self.places = torch.arange(keys.shape[1], device=keys.device)
        # −∞ on padding, added to the energies.
        self._closed = torch.zeros(keys.shape[:2], device=keys.device).masked_fill_(
            self.places >= lengths[:, None], -torch.inf
        )[:, None]  # [batch, 1, places]

    @classmethod
    def project(
        cls,
        energy: LearnedEnergy | Dot,
        vectors: Float[Tensor, "batch places width"],
        lengths: Int[Tensor, "batch"],
        *,
        values: Float[Tensor, "batch places values"] | None = None,
    ) -> EncoderMemory:
        """Keys from these vectors, which are the values too unless `values` are given."""
        if lengths.device.type == "cpu" and plain(lengths) and bool((lengths < 1).any()):
            raise ValueError(f"every sentence needs at least one place to attend to; the shortest has {lengths.min()}")
        no_query = vectors.new_empty(len(vectors), 0, getattr(energy, "dim_q", vectors.shape[-1]))
        _, keys, form = energy.split(no_query, vectors)
        return cls(keys, form, vectors if values is None else values, lengths)

    def energies(
        self, q: Float[Tensor, "batch queries d"], closed: Float[Tensor, "batch queries places"] | None = None
    ) -> Float[Tensor, "batch queries places"]:
        """energy(q, k), −∞ on padding; `closed` (0 or −∞) is added."""
        return self._energies(q) + (self._closed if closed is None else self._closed + closed)

    def weights(
        self, q: Float[Tensor, "batch queries d"], closed: Float[Tensor, "batch queries places"] | None = None
    ) -> Float[Tensor, "batch queries places"]:
        """softmax(energy(q, k)), in float32 at least."""
        e = self.energies(q, closed)
        return torch.softmax(e, dim=-1, dtype=torch.promote_types(e.dtype, torch.float32))

    def attend(
        self,
        q: Float[Tensor, "batch queries d"],
        *,
        closed: Float[Tensor, "batch queries places"] | None = None,
        scale: Float[Tensor, "batch queries places"] | None = None,
    ) -> tuple[Float[Tensor, "batch queries width"], Float[Tensor, "batch queries places"]]:
        """Context and weights. `closed` is added to the energies (0 or −∞), `scale` multiplies the weights."""
        p = self.weights(q, closed)
        if scale is not None:
            p = p * scale
        z = self.mix(p)
        if listeners and scale is None:  # scaled weights do not sum to one: no normalizer describes them
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
        """Report a step to the listeners of `attend`."""
        mask = padding(self.lengths) if bool((self.lengths < len(self.places)).any()) else None
        if closed is not None:
            window = dense(closed == 0)
            mask = window if mask is None else mask & window
        a = q.to(self.keys.dtype)
        notify_step(a, self.keys, self.form, self.values, z, mask=mask, normalize=normalize, state=state)

    def select(self, rows: Int[Tensor, "chosen"]) -> EncoderMemory:
        """The memory of these sentences."""
        return EncoderMemory(self.keys[rows], self.form, self.values[rows], self.lengths[rows])
