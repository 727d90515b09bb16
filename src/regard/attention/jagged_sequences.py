"""Sequences of different lengths in one batch: nested tensors of layout torch.jagged.

On a GPU, softmax over dot products runs on PyTorch's variable-length kernel. Everything else is computed with padding:
each sequence is padded to the longest, the filling is masked, and the outputs of the filling are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .masks.mask import Dense, Mask
from .masks.standard_masks import padding
from .request import make_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    from .masks.mask import MaskFunction
    from .normalizers.normalizer import Normalizer


def any_nested(*tensors: Tensor) -> bool:
    return any(getattr(x, "is_nested", False) for x in tensors)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """A nested tensor [B, *, T, D] taken apart: its values and where each sequence lies among them."""

    nested: Tensor
    values: Float[Tensor, "total *rest"]
    """The vectors of all sequences in a row; heads, where there are any, after them."""
    offsets: Int[Tensor, " b_and_one"]
    lengths: Int[Tensor, " b"]
    gaps: bool
    """Whether there may be values between the sequences that belong to none."""

    @classmethod
    def of(cls, x: Any, name: str) -> Sequences:
        if not x.is_nested:
            raise ValueError(f"q, k and v are nested together or not at all; {name} is not nested")
        if x.layout != torch.jagged:
            raise ValueError(
                f"{name} is a nested tensor of layout {x.layout}; make it with layout=torch.jagged, for example by "
                "torch.nested.nested_tensor(list, layout=torch.jagged)"
            )
        ragged = [axis for axis, size in enumerate(x.shape) if not isinstance(size, int)]
        if ragged != [x.dim() - 2]:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; expected [B, T, D] or [B, heads, T, D] with sequences of different "
                "lengths in dimension T. From [B, T, heads, D] use .transpose(1, 2)"
            )
        values, offsets, lengths = x.values(), x.offsets(), x.lengths()
        if values.dim() == 3:
            values = values.transpose(0, 1)  # [heads, total, D] → [total, heads, D]
        return cls(x, values, offsets, offsets.diff() if lengths is None else lengths, lengths is not None)

    @property
    def heads(self) -> int | None:
        return self.values.shape[1] if self.values.dim() == 3 else None

    def index(self) -> tuple[Tensor, Tensor, Tensor]:
        """For every vector its sequence, its position there, and its place among the values."""
        device = self.values.device
        sequence = torch.repeat_interleave(torch.arange(len(self.lengths), device=device), self.lengths)
        first = self.lengths.cumsum(0) - self.lengths  # of each sequence, where they follow one another without gaps
        position = torch.arange(len(sequence), device=device) - first[sequence]
        return sequence, position, self.offsets[:-1][sequence] + position

    def padded(self, index: tuple[Tensor, Tensor, Tensor], longest: int) -> Float[Tensor, "b *heads longest d"]:
        """[B, T, D] or [B, heads, T, D], zeros after the end of each sequence."""
        sequence, position, place = index
        full = self.values.new_zeros(len(self.lengths), longest, *self.values.shape[1:])
        full = full.index_put((sequence, position), self.values[place])
        return full.transpose(1, 2) if self.heads else full

    def renest(self, padded: Float[Tensor, "b *heads longest d"], index: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The nested tensor of the same lengths, from a padded one."""
        sequence, position, _ = index
        values = (padded.transpose(1, 2) if self.heads else padded)[sequence, position]  # [total, (heads,) d]
        # The same offsets, so that PyTorch knows that the lengths are those of q and takes q + output.
        offsets = self.offsets
        if self.gaps:
            offsets = torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        return nested.transpose(1, 2) if self.heads else nested


@dataclass(frozen=True, slots=True, eq=False)
class JaggedBatch:
    """q, k and v that are nested."""

    q: Sequences
    k: Sequences
    v: Sequences

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> JaggedBatch:
        batch = cls(Sequences.of(q, "q"), Sequences.of(k, "k"), Sequences.of(v, "v"))
        if len(batch.q.lengths) != len(batch.k.lengths):
            raise ValueError(f"q has {len(batch.q.lengths)} sequences and k {len(batch.k.lengths)}")
        if not _same_lengths(batch.k, batch.v):
            raise ValueError("every key needs a value: the sequences of k and v have different lengths")
        return batch

    def kernel_scale(
        self,
        energy: Callable[[Tensor, Tensor], Tensor],
        normalize: Normalizer | Callable[..., Tensor],
        mask: Mask | Tensor | MaskFunction | None,
        dropout: float,
    ) -> float | None:
        """What PyTorch's variable-length kernel multiplies dot products by; None where it cannot compute this."""
        q, k, v = (x.values for x in (self.q, self.k, self.v))
        if q.device.type != "cuda" or q.dtype not in _HALVES or q.dim() != 3 or not q.numel():
            return None
        if not q.shape[1:] == k.shape[1:] == v.shape[1:] or q.shape[-1] % 8 or q.shape[-1] > 256:
            return None
        if mask is not None and not (_is_causal(mask) and _same_lengths(self.q, self.k)):
            return None
        # An energy that leaves one row as it is leaves nested tensors as they are.
        one_q, one_k, one_v = (x[:1].transpose(0, 1) for x in (q, k, v))  # [heads, 1, D]
        request = make_request(one_q, one_k, one_v, energy, normalize, None, dropout, weights=False)
        energies = request.energies
        if energies.form.kernel != "dot" or request.normalize.kernel != "softmax" or energies.modifiers:
            return None
        if energies.a is not one_q or energies.b is not one_k:
            return None
        return energies.form.scale / request.normalize.temperature

    def kernel_output(self, scale: float, mask: Mask | Tensor | MaskFunction | None, dropout: float) -> Tensor:
        q, k, v = self.q.nested, self.k.nested, self.v.nested
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=mask is not None, scale=scale)

    def padded(
        self, mask: Mask | Tensor | MaskFunction | None, every_row: bool
    ) -> tuple[Tensor, Tensor, Tensor, Mask | MaskFunction | None, Callable[[Tensor], Tensor]]:
        """q, k, v and mask with padding, and the function that makes a padded output nested again.

        With `every_row` the rows of the filling see no key; without, their outputs are only dropped.
        """
        index_q, index_k = self.q.index(), self.k.index()
        index_v = self.v.index() if self.k.gaps or self.v.gaps else index_k
        most_q, most_k = (max(1, int(x.lengths.max())) if len(x.lengths) else 1 for x in (self.q, self.k))
        q, k, v = (
            self.q.padded(index_q, most_q),
            self.k.padded(index_k, most_k),
            self.v.padded(index_v, most_k),
        )
        own = self._mask(mask, every_row)
        return q, k, v, own, lambda output: self.q.renest(output, index_q)

    def _mask(self, mask: Mask | Tensor | MaskFunction | None, every_row: bool) -> Mask | MaskFunction | None:
        lengths_q, lengths_k = self.q.lengths, self.k.lengths
        if isinstance(mask, Tensor):
            mask = Dense(mask)
        if isinstance(mask, Mask):
            mask = mask.resolve(lengths_q, lengths_k)
            # No query of a sequence sees past its own position, so none sees the filling; SDPA has a flag for that.
            before = mask.causal_offset is not None and mask.causal_offset <= 0
            if before and not every_row and _same_lengths(self.q, self.k):
                return mask
        real = padding(lengths_k, queries=lengths_q) if every_row else padding(lengths_k)
        return real if mask is None else real & mask


def _is_causal(mask: Mask | Tensor | MaskFunction | None) -> bool:
    """Whether it is "j ≤ i" for sequences with as many queries as keys."""
    return isinstance(mask, Mask) and mask.resolve(1, 1).is_causal


_HALVES = frozenset({torch.float16, torch.bfloat16})


def _same_lengths(a: Sequences, b: Sequences) -> bool:
    same: Any = a.nested.shape[-2] == b.nested.shape[-2]  # known without reading, where they share their offsets
    return bool(same) or torch.equal(a.lengths, b.lengths)
