"""Products that a recurrent search computes once per sentence instead of once per step.

The gates of a cell and the readout are both linear in the token y and the context c. The context is a weighted sum
c = Σ_j p_j v_j, so a product W c = Σ_j p_j (W v_j) needs W v_j only once for every source place. With several beams
there are more steps and rows than places. One product with y serves gates and readout too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...layers.recurrent.deferred_gradient import DeferredLinear

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from ...layers import RecurrentCell


ROWS = 64  # for less, finding the equal ones takes longer than their products


def should_merge_equal_rows(rows: Int[Tensor, "rows"]) -> bool:
    """Whether a step multiplies equal rows only once: beams continue the same hypothesis, or have the same token.

    A GPU would have to wait for their number.
    """
    return rows.device.type == "cpu" and len(rows) >= ROWS


@dataclass
class RecurrentProducts:
    """The maps of one search. Each result has the gates first and the readout after them."""

    token: DeferredLinear  # y ↦ [W y + b; R_y y + r], of the first cell
    context: DeferredLinear  # p ↦ Σ_j p_j [V v_j; R_c v_j] (+ [b; 0]), of the cell that reads the context
    state: DeferredLinear  # h ↦ R_h h

    @classmethod
    def compute(
        cls,
        first: RecurrentCell,
        attending: RecurrentCell,
        join: nn.Linear,
        values: Float[Tensor, "sentences places memory"],
    ) -> RecurrentProducts:
        """`first` reads the tokens, `attending` the contexts, `join` [h; y; c]."""
        if first.early is None or attending.late is None:
            raise ValueError("the first cell needs an early input, and the attending cell a late one")
        width, embedding = first.recall.shape[1], first.early.shape[1]
        dtype = values.dtype  # autocast's, where it is on
        to_state, to_token, to_context = join.weight.split([width, embedding, values.shape[-1]], 1)
        projected = values @ torch.cat([attending.late, to_context]).to(dtype).mT
        bias = None
        if attending.early is None:  # then b is in no other product
            bias = torch.cat([attending.bias, attending.bias.new_zeros(len(to_context))]).expand(len(values), -1)
        token, token_bias = torch.cat([first.early, to_token]), torch.cat([first.bias, join.bias])
        return cls(
            DeferredLinear(token.to(dtype), token_bias.to(dtype)),
            DeferredLinear(projected.mT, None if bias is None else bias.to(dtype)),
            DeferredLinear(to_state.to(dtype).contiguous()),
        )

    def keep(self, sentences: Int[Tensor, "kept"]) -> RecurrentProducts:
        matrix, bias = self.context.matrix.mT[sentences].mT, self.context.bias
        return replace(self, context=DeferredLinear(matrix, None if bias is None else bias[sentences]))
