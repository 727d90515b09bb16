"""Sequences of different lengths in one batch: nested tensors of layout torch.jagged, or packed with their lengths.

Each sequence is padded to the longest, the filling is masked, and the outputs of the filling are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .masks import Dense, Mask, padding
from .parts import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Float, Int

    from .masks import MaskFunction

    AnyMask = Mask | Tensor | MaskFunction | None


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The vectors of all sequences, and where each sequence lies among them."""

    values: Float[Tensor, "total *heads d"]
    offsets: Int[Tensor, " b_and_one"]
    lengths: Int[Tensor, " b"]

    @classmethod
    def of(cls, x: Any, name: str) -> Sequences:
        """Those of a nested tensor [B, T, D] or [B, heads, T, D]."""
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
        x = x.contiguous()  # no values between the sequences that belong to none
        values, offsets = x.values(), x.offsets()
        if values.dim() == 3:
            values = values.transpose(0, 1)  # [heads, total, D] → [total, heads, D]
        return cls(values, offsets, offsets.diff())

    @classmethod
    def packed(cls, x: Tensor, name: str, cu_seqlens: Tensor) -> Sequences:
        """Sequence b has the rows cu_seqlens[b] up to cu_seqlens[b + 1] of x."""
        if cu_seqlens.dim() != 1 or not len(cu_seqlens) or cu_seqlens.is_floating_point() or cu_seqlens.is_complex():
            kind = f"{cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
            raise ValueError(f"{name} has the whole numbers 0, n_1, n_1 + n_2, …, one more than sequences; got {kind}")
        offsets = cu_seqlens.to(device=x.device, dtype=torch.int64)
        if readable(cu_seqlens):  # of a GPU too: the longest is read anyway, and a kernel would read past the end
            numbers = cu_seqlens.tolist()
            if numbers[0] or numbers[-1] != x.shape[0] or numbers != sorted(numbers):
                raise ValueError(
                    f"{name} goes from 0 to the number of rows, {x.shape[0]}, and never down; got {numbers[:8]}"
                )
        return cls(x, offsets, offsets.diff())

    @property
    def longest(self) -> int:
        return int(self.lengths.max()) if len(self.lengths) else 0

    def same_lengths(self, other: Sequences) -> bool:
        return self.offsets is other.offsets or torch.equal(self.lengths, other.lengths)

    def index(self) -> tuple[Tensor, Tensor]:
        """For every vector its sequence and its position there."""
        device = self.values.device
        sequence = torch.repeat_interleave(torch.arange(len(self.lengths), device=device), self.lengths)
        return sequence, torch.arange(len(sequence), device=device) - self.offsets[:-1][sequence]

    def padded(self, index: tuple[Tensor, Tensor], longest: int) -> Float[Tensor, "b *heads longest d"]:
        """[B, T, D] or [B, heads, T, D], zeros after the end of each sequence."""
        full = self.values.new_zeros(len(self.lengths), longest, *self.values.shape[1:])
        full = full.index_put(index, self.values)
        return full.transpose(1, 2) if self.values.dim() == 3 else full

    def nested(self, values: Float[Tensor, "total *heads d_v"]) -> Tensor:
        """The nested tensor of these lengths."""
        # The same offsets: by them PyTorch knows that q and the output have the same lengths.
        nested = torch.nested.nested_tensor_from_jagged(values, self.offsets)
        return nested.transpose(1, 2) if values.dim() == 3 else nested


@dataclass(frozen=True, slots=True, eq=False)
class JaggedBatch:
    """The sequences of q, k and v."""

    q: Sequences
    k: Sequences
    v: Sequences

    def __post_init__(self) -> None:
        if len(self.q.lengths) != len(self.k.lengths):
            raise ValueError(f"q has {len(self.q.lengths)} sequences and k {len(self.k.lengths)}")
        if not self.k.same_lengths(self.v):
            raise ValueError("every key needs a value: the sequences of k and v have different lengths")

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor) -> JaggedBatch:
        return cls(Sequences.of(q, "q"), Sequences.of(k, "k"), Sequences.of(v, "v"))

    def padded(
        self, mask: AnyMask, every_row: bool
    ) -> tuple[Tensor, Tensor, Tensor, Mask | MaskFunction | None, Callable[[Tensor], Tensor]]:
        """q, k, v and mask with padding, and the function from a padded output to the values of all sequences.

        With `every_row` the rows of the filling see no key; without, their outputs are only dropped.
        """
        index_q, index_k = self.q.index(), self.k.index()
        longest_q, longest_k = max(1, self.q.longest), max(1, self.k.longest)
        q, k = self.q.padded(index_q, longest_q), self.k.padded(index_k, longest_k)
        v = self.v.padded(index_k, longest_k)

        def values(output: Float[Tensor, "b *heads longest d"]) -> Float[Tensor, "total *heads d"]:
            return (output.transpose(1, 2) if output.dim() == 4 else output)[index_q]

        return q, k, v, self._mask(mask, every_row), values

    def _mask(self, mask: AnyMask, every_row: bool) -> Mask | MaskFunction | None:
        if isinstance(mask, Tensor):
            mask = Dense(mask)
        if isinstance(mask, Mask):
            mask = mask.resolve(self.q.lengths, self.k.lengths)
            # No query of a sequence sees past its own position, so none sees the filling; SDPA has a flag for that.
            before = mask.causal_offset is not None and mask.causal_offset <= 0
            if before and not every_row and self.q.same_lengths(self.k):
                return mask
        real = padding(self.k.lengths, queries=self.q.lengths) if every_row else padding(self.k.lengths)
        return real if mask is None else real & mask
