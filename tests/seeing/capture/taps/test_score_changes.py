"""Scores, operands and weights that a module changes between product, softmax and values are noticed in every row."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from regard import watch
from regard.seeing.capture.call_inputs_and_output import evenly_spaced, some_rows
from regard.seeing.capture.recording import written_scores
from regard.seeing.capture.taps import score_trace
from tests.support.written_attention import LEAST, Block, distances, inputs, shifted

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 512
COMPARED, KEPT = evenly_spaced(LONG, written_scores.ROWS), some_rows(torch.empty(LONG, 1))[0]
assert KEPT is not None
UNSAMPLED = torch.ones(LONG, dtype=torch.bool).index_fill(0, torch.cat([COMPARED, KEPT]), False)
"""Rows that neither the comparison nor the measurement of fidelity samples."""


def _rows_zeroed(w: Tensor) -> Tensor:
    return w.masked_fill_(UNSAMPLED[:, None], 0.0)


def _rows_scaled(w: Tensor) -> Tensor:
    return w.mul_(1.0 + UNSAMPLED[:, None])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("change", [_rows_zeroed, _rows_scaled])
def test_weights_changed_in_place_after_the_softmax_are_kept(change: Callable[[Tensor], Tensor], grad: bool) -> None:
    class Attention(nn.Module):
        num_heads = 2

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return change(torch.softmax(q @ k.mT / 4, -1)) @ v

    q, k, v = inputs(torch.float32, LONG)
    model = nn.Sequential(Attention()).eval()
    with torch.set_grad_enabled(grad), watch(model) as seen:
        out = model[0](q, k, v)
    (call,) = seen
    assert call.matrix == "its weights were changed in place after the softmax"
    torch.testing.assert_close(call.weights.dense() @ v, out.detach())


def test_weights_of_closed_keys_set_to_zero_again_are_recomputed() -> None:
    """SEW-D: the change has no effect, which a comparison of all rows shows."""
    closed = torch.ones(LONG, LONG, dtype=torch.bool).triu(1)

    class Attention(nn.Module):
        num_heads = 2

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            w = torch.softmax((q @ k.mT / 4).masked_fill(closed, LEAST), -1)
            return w.masked_fill_(closed, 0) @ v

    q, k, v = inputs(torch.float32, LONG)
    model = nn.Sequential(Attention()).eval()
    with torch.no_grad(), watch(model) as seen:
        out = model[0](q, k, v)
    (call,) = seen
    assert call.matrix == ""
    torch.testing.assert_close(call.weights.dense() @ v, out, rtol=1e-4, atol=1e-5)


def test_rows_of_scores_changed_in_inference_mode_are_found() -> None:
    def changed(q: Tensor, k: Tensor) -> Tensor:
        e = q @ k.mT / 4
        for row in UNSAMPLED.nonzero().flatten().tolist()[:50]:
            e.select(-2, row).zero_()
        return e

    q, k, v = inputs(torch.float32, LONG)
    model = Block(changed)
    with torch.inference_mode(), watch(model) as seen:
        model(q, k, v)
    (call,) = seen
    assert "differ by" in call.matrix
    torch.testing.assert_close(call.weights.dense(), model.weights[0].clone().view(call.shape))


def test_a_mask_refilled_between_layers_in_inference_mode() -> None:
    past = torch.ones(LONG, LONG, dtype=torch.bool).tril()

    class Attention(nn.Module):
        num_heads = 2

        def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            return torch.softmax(q @ k.mT / 4 + mask, -1) @ v

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.ModuleList(Attention() for _ in range(2))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
            mask = torch.zeros(LONG, LONG).masked_fill(~past, LEAST)
            first = self.attention[0](q, k, v, mask)
            near = (torch.arange(LONG)[:, None] - torch.arange(LONG)) < 5
            mask.masked_fill_(~near & UNSAMPLED[:, None], LEAST)
            return [first, self.attention[1](q, k, v, mask)]

    q, k, v = inputs(torch.float32, LONG)
    model = Layers().eval()
    with torch.inference_mode(), watch(model) as seen:
        outputs = model(q, k, v)
    for call, out in zip(seen, outputs, strict=True):
        torch.testing.assert_close(call.weights.dense() @ v, out.clone(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", ["queries", "distances"])
def test_a_tensor_of_an_added_product_changed_after_the_call_is_noticed(where: str) -> None:
    q, k, v = inputs(torch.float32)
    tensors = {"queries": q * 0.5, "distances": distances(q).clone()}
    model = Block(lambda q, k: q @ k.mT + shifted(tensors["queries"] @ tensors["distances"].mT))
    with torch.no_grad(), watch(model) as seen:
        model(q, k, v)
    assert seen[0].matrix == ""
    assert seen.faithful is True
    tensors[where][..., 3, :] += 1
    assert seen.faithful is not True
    assert seen[0].fidelity().lost


@pytest.mark.parametrize("change", ["the shifted product", "the sum", "the product before"])
def test_added_products_changed_in_inference_mode_are_found(change: str) -> None:
    """Nothing tells of changes in place there: all rows are compared."""

    def changed(q: Tensor, k: Tensor) -> Tensor:
        p = q @ distances(q).mT
        if change == "the product before":
            p.select(-2, 5).zero_()
        moved = shifted(p)
        if change == "the shifted product":
            moved.select(-2, 5).zero_()
        e = q @ k.mT * 0.1 + moved
        if change == "the sum":
            e.select(-2, 5).zero_()
        return e

    model = Block(changed)
    with torch.inference_mode(), watch(model) as seen:
        model(*inputs(torch.float32))
    assert "differ by" in seen[0].matrix
    torch.testing.assert_close(seen[0].weights.dense(), model.weights[0].clone())


def _by_data(x: Tensor) -> None:
    x.data[:, :, ROW] = 0


def _by_new_data(x: Tensor) -> None:
    changed = x.clone()
    changed[:, :, ROW] = 0
    x.data = changed


def _by_numpy(x: Tensor) -> None:
    x.detach().numpy()[:, :, ROW] = 0


def _by_array(x: Tensor) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.asarray(x.detach())[:, :, ROW] = 0


def _by_dlpack(x: Tensor) -> None:
    torch.from_dlpack(x.detach())[:, :, ROW] = 0


def _by_address(x: Tensor) -> None:
    bytes_of_row, entry = x.stride(2) * x.itemsize, x.stride(1) * x.itemsize
    for n in range(x.shape[0] * x.shape[1]):
        ctypes.memset(x.data_ptr() + n * entry + ROW * bytes_of_row, 0, bytes_of_row)


def _by_storage(x: Tensor) -> None:
    torch.empty(0).set_(x.untyped_storage()).view(x.shape)[:, :, ROW] = 0


ROW = 50
"""None of the rows of 160 that are compared or kept as an output."""
UNCOUNTED = [_by_data, _by_new_data, _by_numpy, _by_array, _by_dlpack, _by_address, _by_storage]


@pytest.mark.parametrize("where", ["scores", "queries", "addend", "weights", "many functions later"])
@pytest.mark.parametrize("write", UNCOUNTED)
def test_a_row_written_without_a_version_counter_is_noticed(write: Callable[[Tensor], None], where: str) -> None:
    """Version counters do not count these writes. All rows are compared then."""
    weights = None

    class Written(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nonlocal weights
            scores, addend = q @ k.mT, (q * 0.5) @ k.mT
            for _ in range(score_trace.FUNCTIONS if where == "many functions later" else 0):
                v = v + 0
            if where in ("scores", "many functions later"):
                write(scores)
            elif where == "addend":
                write(addend)
            scores = scores + addend if where == "addend" else scores
            if where == "queries":
                write(q)
            w = scores.softmax(-1)
            if where == "weights":
                write(w)
            weights = w.clone()
            return w @ v

    model = Written()
    with torch.no_grad(), watch(model) as seen:
        model(*(x.contiguous() for x in inputs(torch.float32)))
    (call,) = seen
    assert seen.faithful is True
    torch.testing.assert_close(call.weights.dense(), weights, rtol=1e-4, atol=1e-6)
