"""The recurrent cell and layer against PyTorch's; sentences are padded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from regard.layers import RecurrentCell, RecurrentLayer
from tests.support.gradients import F64, grads, leaf


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


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrence_is_pytorchs_over_packed_sentences(kind: str, bidirectional: bool) -> None:
    ours = RecurrentLayer(kind, 5, 4, bidirectional=bidirectional).double()  # type: ignore[arg-type]
    theirs = (nn.GRU if kind == "gru" else nn.LSTM)(5, 4, batch_first=True, bidirectional=bidirectional).double()
    for number, direction in enumerate(ours.directions):
        suffix = "_reverse" if number else ""
        for name, value in direction.named_parameters():
            getattr(theirs, name + suffix).data.copy_(value)
    x, lengths = leaf(3, 6, 5), torch.tensor([6, 1, 4])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    want, end = theirs(packed)
    want, _ = nn.utils.rnn.pad_packed_sequence(want, batch_first=True)
    end = (end if kind == "gru" else end[0]).transpose(0, 1).flatten(1)
    got, last = ours(x, lengths)
    real = torch.arange(6) < lengths[:, None]
    torch.testing.assert_close(got[real], want[real])
    torch.testing.assert_close(last, end)
    upstream = torch.randn_like(want)
    ours_w = [p for d in ours.directions for p in d.parameters()]
    theirs_w = list(theirs.parameters())
    a = grads((got * upstream * real[..., None]).sum(), x, *ours_w)
    b = grads((want * upstream * real[..., None]).sum(), x, *theirs_w)
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_state_of_a_recurrence_is_not_rounded(kind: str) -> None:
    """In mixed precision its inputs may be bfloat16; the same values in float32 give the same states."""
    ours = RecurrentLayer(kind, 8, 8, bidirectional=False)  # type: ignore[arg-type]
    x, lengths = torch.randn(2, 50, 8).bfloat16(), torch.full((2,), 50)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded, wide = (ours(given, lengths)[0] for given in (x, x.float()))
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, wide)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gradients_beyond_float16_are_finite_in_mixed_precision(kind: str) -> None:
    """Autocast runs cuDNN's steps in float16 even when it is asked for bfloat16: there this sum is infinite."""
    torch.manual_seed(0)
    ours = RecurrentLayer(kind, 16, 16, bidirectional=True)  # type: ignore[arg-type]
    x, lengths = torch.randn(64, 30, 16), torch.full((64,), 30)
    exact = copy.deepcopy(ours).double()
    want = grads(1e4 * exact(x.double(), lengths)[0].sum(), *exact.parameters())
    ours = ours.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        out = ours(x.cuda(), lengths.cuda())[0]
    got = grads(1e4 * out.float().sum(), *ours.parameters())
    assert max(gradient.abs().max() for gradient in want) > 65504
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine.cpu().double(), true, rtol=0.01, atol=0.003 * true.abs().max().item())
