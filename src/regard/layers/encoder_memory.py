"""Attention in the loop of a recurrent decoder: one query at a time over annotations that stay.

`EncoderMemory` is `attend` with the keys projected once. `LocalAttention` adds a window (Luong et al. 2015), and
`SoftHardAttention` takes the average or one place (Xu et al. 2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..attention.attend import listeners, notify
from ..attention.blocks import plain
from ..attention.energies import Dot, EnergyForm, TanhForm
from ..attention.energy_matrix import EnergyMatrix
from ..attention.masks import dense, padding
from ..attention.normalizers import Hard, Normalizer, Softmax
from .kernels.loop import DeferredLinear, LoopAdditive

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from ..attention.energies import LearnedEnergy


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
        no_query = vectors.new_empty(vectors.shape[0], 0, getattr(energy, "dim_q", vectors.shape[-1]))
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
        energies = EnergyMatrix(a, self.keys, self.form, tuple(a.shape[:-2]), (), mask)
        notify(energies, normalize or Softmax(), self.values, z, state, replaceable=False)

    def select(self, rows: Int[Tensor, "chosen"]) -> EncoderMemory:
        """The memory of these sentences."""
        return EncoderMemory(self.keys[rows], self.form, self.values[rows], self.lengths[rows])


class LocalAttention(nn.Module):
    """The window of step t, and the weights within it (Luong et al. 2015, section 3.2).

    - local-m: the middle is p_t = t; the weights are a softmax over the places within D of it.
    - local-p: the middle is p_t = S σ(v · tanh(W h_t)), S the sentence's length; each weight of the softmax over the
      places within D of it is multiplied by exp(−(s − p_t)² / 2σ²), σ = D/2.

    Where a translation is longer than its source, the window of local-m stays at the last word.
    """

    def __init__(self, width: int, window: int, kind: Literal["local-m", "local-p"]) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"local attention needs a window of at least 1, got {window}")
        self.window = window
        self.inner = nn.Linear(width, width, bias=False) if kind == "local-p" else None
        self.outer = nn.Linear(width, 1, bias=False) if kind == "local-p" else None

    def forward(
        self,
        h: Float[Tensor, "batch beams width"],
        position: int,
        lengths: Int[Tensor, "batch"],
        places: Int[Tensor, "places"],
    ) -> tuple[Float[Tensor, "batch beams places"], Float[Tensor, "batch beams places"] | None]:
        """0 or −∞ to add to the energies, and the factor of the weights, if any."""
        if self.inner is None or self.outer is None:
            distance = places - (lengths - 1).clamp(max=position)[:, None, None]  # [batch, 1, places]
            return _closed(distance, self.window), None
        h = h.to(self.inner.weight.dtype)  # a state is float32 at least
        share = torch.sigmoid(self.outer(torch.tanh(self.inner(h))).float())  # [batch, beams, 1]
        distance = places - share * lengths[:, None, None]
        return _closed(distance, self.window), torch.exp(-2 * (distance / self.window) ** 2)  # 2σ² = D²/2


def _closed(distance: Tensor, window: int) -> Tensor:
    return torch.zeros_like(distance, dtype=torch.float32).masked_fill_(distance.detach().abs() > window, -torch.inf)


class SoftHardOutput(NamedTuple):
    """Context and weights; of a sampled place also its log-probability and the entropy of the distribution."""

    context: Float[Tensor, "batch queries width"]
    weights: Float[Tensor, "batch queries places"]
    log_prob: Float[Tensor, "batch queries"] | None = None
    entropy: Float[Tensor, "batch queries"] | None = None


class SoftHardAttention(nn.Module):
    """z = Σ_i w_i a_i with α = softmax(e) (Xu et al. 2015, section 4):

    - soft: w = α (section 4.2);
    - hard: w is 1 at one place s. In training s ~ α, and log α_s and H(α) are returned for REINFORCE (section 4.1);
      in evaluation s = argmax α. Rows that are `expected` use w = α instead of a sample.
    """

    def __init__(self, kind: Literal["soft", "hard"]) -> None:
        super().__init__()
        self.hard = Hard("reinforce") if kind == "hard" else None

    def forward(
        self, memory: EncoderMemory, q: Float[Tensor, "batch queries d"], expected: Bool[Tensor, "batch"] | None = None
    ) -> SoftHardOutput:
        if self.hard is None:
            return SoftHardOutput(*memory.attend(q))
        e = memory.energies(q)
        e = e.to(torch.promote_types(e.dtype, torch.float32))
        weights, picked = self.hard.both(e)
        if not self.training:
            z = memory.mix(weights)
            if listeners:
                memory.notify(q, z, normalize=self.hard, state=picked)
            return SoftHardOutput(z, weights)
        log_alpha = torch.log_softmax(e, dim=-1)
        alpha = log_alpha.exp()
        entropy = -(alpha * log_alpha.masked_fill(alpha == 0, 0)).sum(-1)  # 0 · log 0 = 0
        if expected is not None:
            weights = torch.where(expected[:, None, None], alpha, weights)
        # Not reported: rows with averages and rows with samples have no common normalizer.
        return SoftHardOutput(memory.mix(weights), weights, log_alpha.gather(-1, picked[..., None])[..., 0], entropy)
