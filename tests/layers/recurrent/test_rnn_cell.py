"""The recurrent cell against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.layers import RecurrentCell
from tests.support.gradients import F64, leaf


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cell_is_pytorchs(kind: str) -> None:
    cell = RecurrentCell(kind, 3, 2, 4).double()  # type: ignore[arg-type]
    theirs = (nn.GRUCell if kind == "gru" else nn.LSTMCell)(5, 4).double()
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.cat([cell.early, cell.late], 1))
        theirs.weight_hh.copy_(cell.recall)
        theirs.bias_ih.copy_(cell.bias)
        theirs.bias_hh.copy_(torch.zeros(16) if cell.recall_bias is None else cell.recall_bias)
    x, y, h, c = leaf(2, 3), leaf(2, 2), leaf(2, 4), leaf(2, 4)
    unrolled, hidden = cell.unroll(F64), (h,) if kind == "gru" else (h, c)
    got = unrolled.step(cell.input_gates(x), y, unrolled.recall(hidden)[0], hidden)
    want = theirs(torch.cat([x, y], 1), h if kind == "gru" else (h, c))
    for mine, other in zip(got, (want,) if kind == "gru" else want, strict=True):
        torch.testing.assert_close(mine, other)


def test_a_mask_multiplies_the_state_at_every_step() -> None:
    cell, mask, extra = RecurrentCell("gru", 3, 2, 4).double(), torch.tensor([[2.0, 0, 2, 0], [0, 2, 2, 2]]), leaf(2, 4)
    unrolled = cell.unroll(F64, also=extra, mask=mask.double())
    for h in (leaf(2, 4), leaf(2, 4)):
        gates, product = unrolled.recall((h,))
        torch.testing.assert_close(gates, nn.functional.linear(h * mask, cell.recall, cell.recall_bias))
        torch.testing.assert_close(product, (h * mask) @ extra.mT)
