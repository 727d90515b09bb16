"""attend_step: `attend` for a loop that goes one query at a time, with the keys projected once.

memory = Memory(energy, annotations, lengths=lengths)       # e.g. Additive: U h_j, once
for …:
    context, weights = attend_step(h, memory)               # softmax_j(w · tanh(W h + U h_j)) · h_j
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .blocks import exact, no_kernel, plain
from .energies import EnergyForm, TanhForm
from .energy_matrix import EnergyMatrix, split
from .kernels import step
from .masks import padding
from .normalizers import Softmax
from .request import Request, listeners, notify

if TYPE_CHECKING:
    from jaxtyping import Float, Int
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
        room: int = 0,
    ) -> None:
        if getattr(energy, "modifiers", ()):
            raise ValueError(f"attend_step does not know at which position its query is, which {energy} needs: attend")
        if lengths is not None and lengths.device.type == "cpu" and plain(lengths) and bool((lengths < 1).any()):
            raise ValueError(f"every sentence needs at least one place to attend to; the shortest has {lengths.min()}")
        self.energy, self.lengths, self.room = energy, lengths, room
        self._no_keys = k[:, :0]
        self.values = k if v is None else v
        self.keys, self.form = self._projected(k)
        self._seen = None if lengths is None else padding(lengths).dense((len(k),), 1, k.shape[1], k.device)
        self._entries: step.Entries | None = None
        if isinstance(self.form, TanhForm) and torch.is_grad_enabled() and no_kernel() is None:
            self._sum_in_place(self.form.weight)

    def _projected(self, k: Tensor) -> tuple[Tensor, EnergyForm]:
        no_queries = k.new_empty(len(k), 0, getattr(self.energy, "dim_q", k.shape[-1]))
        _, keys, form = split(self.energy, no_queries, k)
        if keys.device.type == "cpu" or self.room:  # sums over steps and places lose digits in half precision
            keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
        return keys, form

    def _sum_in_place(self, weight: Float[Tensor, "d"]) -> None:
        """Gradients of keys and values are summed in place over the steps; the keys and values have room for more."""
        self._weight = weight.to(self.keys.dtype)
        keys, values = self.keys, self.values
        if self.room:
            keys, values = (torch.nn.functional.pad(x.detach(), (0, 0, 0, self.room)) for x in (keys, values))
        self._entries = step.Entries(keys.detach(), values.detach(), self._weight)
        self._edge: Tensor = step.Write.apply(self.keys.new_empty(0), self.keys, self.values, self._entries, 0)
        self.keys, self.values = (x[:, : self.places].detach() for x in (keys, values))

    @property
    def places(self) -> int:
        return self.keys.shape[1]

    def query(self, q: Float[Tensor, "sentences queries d_q"]) -> Float[Tensor, "sentences queries d"]:
        """The energy's projection of queries."""
        return split(self.energy, q, self._no_keys)[0].to(self.keys.dtype)

    def energies(
        self, a: Float[Tensor, "sentences queries d"], mask: Mask | None = None
    ) -> Float[Tensor, "sentences queries places"]:
        """form(a, b_j) of projected queries, in float32 at least; −∞ on padding and where `mask` hides a place."""
        if self._entries is not None:
            e: Tensor = step.Energies.apply(a, self._weight, self._edge, self._entries, self.places)
        elif isinstance(self.form, TanhForm) and not torch.is_grad_enabled() and plain(a):
            e = step.energies(a, self.keys, self.form.weight.to(self.keys.dtype))
        else:
            with exact(a.device):
                e = self.form(a, self.keys)
        e = e.to(torch.promote_types(e.dtype, torch.float32))
        seen = self._seen
        if mask is not None:
            window = mask.dense((len(a),), a.shape[1], self.places, a.device)
            seen = window if seen is None else seen & window
        return e if seen is None else e.masked_fill(~seen, -torch.inf)

    def mix(self, w: Float[Tensor, "sentences queries places"]) -> Float[Tensor, "sentences queries d_v"]:
        """Σ_j w_j v_j."""
        w = w.to(self.values.dtype)
        if self._entries is not None:
            z: Tensor = step.Mix.apply(w, self._edge, self._entries, self.places)
            return z
        with exact(w.device):
            return w @ self.values

    def write(self, k: Float[Tensor, "sentences d_k"], v: Float[Tensor, "sentences d_v"]) -> None:
        """One more place, after the others: a key, which is projected, and its value."""
        if self.lengths is not None:
            raise ValueError("a memory of sentences with lengths is not written to: places after the end are padding")
        key, value = self._projected(k[:, None])[0].to(self.keys.dtype), v[:, None].to(self.values.dtype)
        if self._entries is None:
            self.keys, self.values = torch.cat([self.keys, key], 1), torch.cat([self.values, value], 1)
            return
        entries, at = self._entries, self.places
        if at >= entries.keys.shape[1]:
            raise ValueError(f"this memory was made for {at} places, and all are taken; start it with more room")
        entries.keys[:, at : at + 1], entries.values[:, at : at + 1] = key.detach(), value.detach()
        self._edge = step.Write.apply(self._edge, key, value, entries, at)
        self.keys, self.values = entries.keys[:, : at + 1], entries.values[:, : at + 1]

    def select(self, rows: Int[Tensor, "chosen"]) -> Memory:
        """The memory of these sentences; for decoding, without gradients."""
        chosen = object.__new__(Memory)
        vars(chosen).update(vars(self), keys=self.keys[rows], values=self.values[rows], _entries=None)
        chosen._no_keys = self._no_keys[rows]
        chosen.lengths = None if self.lengths is None else self.lengths[rows]
        chosen._seen = None if self._seen is None else self._seen[rows]
        return chosen


def attend_step(
    q: Float[Tensor, "rows d_q"],
    memory: Memory,
    *,
    normalize: Normalizer = _SOFTMAX,
    mask: Mask | None = None,
) -> tuple[Float[Tensor, "rows d_v"], Float[Tensor, "rows places"]]:
    """z = Σ_j w_j v_j and w = normalize(energy(q, k_j)), for one query per row: `attend` with keys projected once.

    There may be several rows per sentence of the memory (the beams of a search), one sentence after the other; they
    share its keys and values. `mask` hides places besides padding: a mask over [sentences, rows of a sentence, places].
    `watch` records the step as it records a call of `attend`.
    """
    a = memory.query(q.unflatten(0, (len(memory.keys), -1)))  # [sentences, beams, d]
    e = memory.energies(a, mask)
    w, state = normalize.both(e) if listeners else (normalize(e), None)
    z = memory.mix(w)
    if listeners:
        z = _notify(a, memory, z, state, normalize, mask)
    return z.flatten(0, 1), w.flatten(0, 1)


def _notify(
    a: Tensor, memory: Memory, z: Tensor, state: Tensor | None, normalize: Normalizer, mask: Mask | None
) -> Tensor:
    lengths, keys, values = memory.lengths, memory.keys, memory.values
    if lengths is None:  # more may be written into the same memory
        keys, values = keys.clone(), values.clone()
    elif bool((lengths < memory.places).any()):
        mask = padding(lengths) if mask is None else padding(lengths) & mask
    energies = EnergyMatrix(a, keys, memory.form, tuple(a.shape[:-2]), (), mask)
    return notify(Request(energies, values, normalize, 0.0, weights=True), z, state)
