"""attend_step: `attend` for a loop that goes one query at a time, with the keys projected once.

memory = Memory(energy, annotations, lengths=lengths)       # e.g. Additive: U h_j, once
for …:
    context, weights = attend_step(h, memory)               # softmax_j(w · tanh(W h + U h_j)) · h_j
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import torch

from .attend import listeners, notify
from .energies import EnergyForm, TanhForm
from .energy_matrix import EnergyMatrix, split
from .kernels import additive_steps
from .masks import padding
from .normalizers import Softmax
from .parts import exact, no_kernel, plain

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from .attend import AnyEnergy
    from .masks import Mask
    from .normalizers import Normalizer

_SOFTMAX = Softmax()


class Memory:
    """What the queries of a loop attend to: keys, projected by the energy, and values, one row per sentence.

    The values are the vectors themselves unless `v` are given. Places at and past `lengths` are padding. `write` adds
    places; in training it needs `room` for them, so that keys and values are not copied at every step.
    """

    def __init__(
        self,
        energy: AnyEnergy,
        k: Float[Tensor, "sentences places d_k"],
        v: Float[Tensor, "sentences places d_v"] | None = None,
        *,
        lengths: Int[Tensor, "sentences"] | None = None,
        normalize: Normalizer = _SOFTMAX,
        room: int = 0,
    ) -> None:
        if getattr(energy, "modifiers", ()):
            raise ValueError(f"attend_step does not know at which position its query is, which {energy} needs: attend")
        if lengths is not None and lengths.device.type == "cpu" and plain(lengths) and bool((lengths < 1).any()):
            raise ValueError(f"every sentence needs at least one place to attend to; the shortest has {lengths.min()}")
        self.energy, self.normalize, self.lengths, self.room = energy, normalize, lengths, room
        self.values, self.places, self._no_keys = k if v is None else v, k.shape[1], k[:, :0]
        self.keys, self.form = self._projected(k)
        self._seen = None if lengths is None else padding(lengths).dense((k.shape[0],), 1, self.places, k.device)
        self._entries: additive_steps.Entries | None = None
        if isinstance(self.form, TanhForm) and normalize == _SOFTMAX and torch.is_grad_enabled() and not no_kernel():
            self._sum_gradients(self.form.weight.to(self.keys.dtype))

    def _projected(self, k: Float[Tensor, "sentences places d_k"]) -> tuple[Tensor, EnergyForm]:
        no_queries = k.new_empty(k.shape[0], 0, getattr(self.energy, "dim_q", k.shape[-1]))
        _, keys, form = split(self.energy, no_queries, k)
        if keys.device.type == "cpu" or self.room:  # sums over steps and places lose digits in half precision
            keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
        return keys, form

    def _sum_gradients(self, weight: Float[Tensor, "d"]) -> None:
        """From now on gradients of keys and values are summed in place over the steps (`kernels/additive_steps.py`)."""
        keys, values = self.keys.detach(), self.values.detach()
        if self.room:
            keys, values = (torch.nn.functional.pad(x, (0, 0, 0, self.room)) for x in (keys, values))
        entries = additive_steps.Entries(keys, values, weight)
        self._entries, self._weight = entries, weight
        self._edge: Tensor = additive_steps.Write.apply(keys.new_empty(0), self.keys, self.values, entries, 0)

    def query(self, q: Float[Tensor, "sentences queries d_q"]) -> Float[Tensor, "sentences queries d"]:
        """The energy's projection of queries."""
        return split(self.energy, q, self._no_keys)[0].to(self.keys.dtype)

    def energies(
        self, a: Float[Tensor, "sentences queries d"], mask: Mask | None = None
    ) -> Float[Tensor, "sentences queries places"]:
        """form(a, b_j) of projected queries, in float32 at least; −∞ on padding and where `mask` hides a place."""
        if isinstance(self.form, TanhForm) and not torch.is_grad_enabled() and plain(a):
            e = additive_steps.energies(a, self.keys, self.form.weight.to(self.keys.dtype))
        else:
            with exact(a.device):
                e = self.form(a, self.keys)
        e, seen = e.to(torch.promote_types(e.dtype, torch.float32)), self.seen(a.shape[1], mask)
        return e if seen is None else e.masked_fill(~seen, -torch.inf)

    def seen(self, queries: int, mask: Mask | None) -> Bool[Tensor, "sentences queries places"] | None:
        """Which places are neither padding nor hidden by `mask`; None for all."""
        if mask is None:
            return self._seen
        seen = mask.dense((self.keys.shape[0],), queries, self.places, self.keys.device)
        return seen if self._seen is None else self._seen & seen

    def mix(self, w: Float[Tensor, "sentences queries places"]) -> Float[Tensor, "sentences queries d_v"]:
        """Σ_j w_j v_j."""
        with exact(w.device):
            return w.to(self.values.dtype) @ self.values

    def look(
        self,
        a: Float[Tensor, "sentences queries d"],
        mask: Mask | None = None,
        factor: Float[Tensor, "sentences queries places"] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """z, w and the state of the normalizer, for projected queries."""
        if self._entries is not None and factor is None:
            seen = self.seen(a.shape[1], mask)
            return *additive_steps.Look.apply(a, self._weight, self._edge, self._entries, self.places, seen), None
        e = self.energies(a, mask)
        w, state = self.normalize.both(e) if listeners else (self.normalize(e), None)
        w = w if factor is None else w * factor
        return self.mix(w), w, state

    def write(self, k: Float[Tensor, "sentences d_k"], v: Float[Tensor, "sentences d_v"]) -> None:
        """One more place, after the others: a key, which is projected, and its value."""
        if self.lengths is not None:
            raise ValueError("a memory of sentences with lengths is not written to: places after the end are padding")
        key, value = self._projected(k[:, None])[0].to(self.keys.dtype), v[:, None].to(self.values.dtype)
        entries, at, self.places = self._entries, self.places, self.places + 1
        if entries is None:
            self.keys, self.values = torch.cat([self.keys, key], 1), torch.cat([self.values, value], 1)
            return
        if at >= entries.keys.shape[1]:
            raise ValueError(f"this memory was made for {at} places, and all are taken; start it with more room")
        entries.keys[:, at], entries.values[:, at] = key[:, 0].detach(), value[:, 0].detach()
        self._edge = additive_steps.Write.apply(self._edge, key, value, entries, at)

    def _whole(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all places."""
        if self._entries is None or not self.room:
            return self.keys, self.values
        return self._entries.keys[:, : self.places], self._entries.values[:, : self.places]

    def select(self, rows: Int[Tensor, "chosen"]) -> Memory:
        """The memory of these sentences. What was written into it carries no gradient: this is for decoding."""
        keys, values = self._whole()
        return self.holding(keys[rows], values[rows], None if self.lengths is None else self.lengths[rows])

    def holding(
        self,
        keys: Float[Tensor, "chosen places d"],
        values: Float[Tensor, "chosen places d_v"],
        lengths: Int[Tensor, "chosen"] | None,
    ) -> Memory:
        """A memory of the same energy, with other projected keys, values and lengths."""
        other, rows = copy(self), keys.shape[0]
        other.keys, other.values, other.lengths, other.places = keys, values, lengths, keys.shape[1]
        other._no_keys, other._entries = self._no_keys.new_empty(rows, 0, self._no_keys.shape[-1]), None
        other._seen = None if lengths is None else padding(lengths).dense((rows,), 1, other.places, keys.device)
        return other


def attend_step(
    q: Float[Tensor, "rows d_q"],
    memory: Memory,
    *,
    mask: Mask | None = None,
    factor: Float[Tensor, "sentences beams places"] | None = None,
) -> tuple[Float[Tensor, "rows d_v"], Float[Tensor, "rows places"]]:
    """z = Σ_j w_j v_j and w = normalize(energy(q, k_j)), for one query per row: `attend` with keys projected once.

    There may be several rows per sentence of the memory (the beams of a search), one sentence after the other; they
    share its keys and values. `mask` hides places besides padding: a mask over [sentences, rows of a sentence, places].
    A memory without places gives zeros. A `factor` multiplies the weights (Luong's local-p).

    `watch` records the step as it records a call of `attend`; not with a factor, which is part of no normalizer.
    """
    if not memory.places:
        return memory.values.new_zeros(q.shape[0], memory.values.shape[-1]), q.new_zeros(q.shape[0], 0)
    a = memory.query(q.unflatten(0, (memory.keys.shape[0], -1)))  # [sentences, beams, d]
    z, w, state = memory.look(a, mask, factor)
    if listeners and factor is None:
        z = _notify(a, memory, z, state, mask)
    return z.flatten(0, 1), w.flatten(0, 1)


def _notify(a: Tensor, memory: Memory, z: Tensor, state: Tensor | None, mask: Mask | None) -> Tensor:
    lengths, (keys, values) = memory.lengths, memory._whole()
    if memory.room:  # copies: more is written into the same memory
        keys, values = keys.clone(), values.clone()
    if lengths is not None and bool((lengths < memory.places).any()):
        mask = padding(lengths) if mask is None else padding(lengths) & mask
    energies = EnergyMatrix(a, keys, memory.form, tuple(a.shape[:-2]), (), mask)
    return notify(energies, memory.normalize, values, z, state)
