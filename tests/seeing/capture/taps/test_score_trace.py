"""Attention that a module writes out is recomputed from queries and keys: no T × T matrix is held, or it is named."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard import load_trace, watch
from regard.seeing.capture import written_attention
from regard.seeing.capture.taps import score_trace
from regard.seeing.capture.taps.function_mode import end_mode
from tests.support.written_attention import (
    BUCKETS,
    CAUSAL,
    LEAST,
    PADDING,
    PAST,
    WAYS,
    B,
    Block,
    H,
    Scores,
    T,
    distances,
    inputs,
    seen_of,
    shifted,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_are_recomputed_from_queries_and_keys(way: str, dtype: torch.dtype) -> None:
    seen, model = seen_of(WAYS[way], *inputs(dtype))
    (call,) = seen
    assert call.matrix == ""
    assert seen.matrices == []
    assert seen.faithful is True
    theirs = model.weights[0].float().view(call.shape)
    ours = call.weights.tile(slice(None), slice(None))
    # Where a score lies between two numbers of its type, one of the two rounds it up: half a step of the type.
    torch.testing.assert_close(ours, theirs, rtol=5e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-3)
    assert (ours - theirs).abs().mean() < (2e-5 if dtype == torch.bfloat16 else 1e-8)
    assert seen.nbytes < B * H * T * T * dtype.itemsize, "not less than the matrix"


def _changed(q: Tensor, k: Tensor) -> Tensor:
    e = q @ k.mT
    q.mul_(2)
    return e


def _changed_view(q: Tensor, k: Tensor) -> Tensor:
    e = q @ k.mT
    e.view(-1)[: T * T] = 0
    return e


def _without_keys(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(PAST.mT.tril(-1) | (torch.arange(T) < 5)[:, None], LEAST)


def _masked_products(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~PAST, LEAST) + (q @ (k + 1).mT).masked_fill(~PAST, LEAST)


def _changed_addend(q: Tensor, k: Tensor) -> Tensor:
    second = q * 0.5
    e = q @ k.mT + second @ k.mT
    second.mul_(2)
    return e


def _changed_product(q: Tensor, k: Tensor) -> Tensor:
    first, second = q @ k.mT, (q * 0.5) @ k.mT
    second.view(-1)[: T * T] = 0
    return first + second


def _changed_while_moved(q: Tensor, k: Tensor) -> Tensor:
    p = q @ distances(q).mT
    moved = p.reshape(B, H, 2 * T, T)
    p[..., 1:, :] *= 2
    return q @ k.mT + moved[:, :, 1:, :].reshape(B, H, T, 2 * T - 1)[..., :T]


def _gathered_by_rows(q: Tensor, k: Tensor) -> Tensor:
    index = (torch.arange(T)[:, None] * 7 + torch.arange(T)) % 40
    return q @ k.mT + torch.gather(q @ distances(q, 40).mT, -1, index.expand(B, H, T, T))


def _changed_positions(q: Tensor, k: Tensor) -> Tensor:
    index = BUCKETS.clone()
    e = q @ k.mT + torch.gather(q @ distances(q, 40).mT, -1, index.expand(B, H, T, T))
    index.zero_()
    return e


KEPT: dict[str, tuple[Scores, str]] = {
    "another function": (lambda q, k: (q @ k.mT).tanh(), "pass through tanh"),
    "two products, one changed": (lambda q, k: q @ k.mT + (q @ (k + 1).mT).tanh(), "several products"),
    "the difference of products": (lambda q, k: q @ k.mT - (q * 0.5) @ (k + 1).mT, "several products"),
    "two products with a mask before": (_masked_products, "several products"),
    "the second queries changed": (_changed_addend, "changed in place"),
    "the second product changed": (_changed_product, "a bias of their own"),
    "positions changed while moved": (_changed_while_moved, "a bias of their own"),
    "gathered by no distance": (_gathered_by_rows, "not those of distances"),
    "positions of a gather changed": (_changed_positions, "changed in place"),
    "positions alone": (lambda q, k: shifted(q @ distances(q).mT), "moved along the keys"),
    "transposed": (lambda q, k: (q @ k.mT).transpose(-1, -2), "moved along the keys"),
    "rows moved": (lambda q, k: (q @ k.mT)[..., torch.arange(T - 1, -1, -1), :], "moved along the keys"),
    "a bias": (lambda q, k: q @ k.mT + torch.linspace(-1, 1, B * H * T * T).view(B, H, T, T), "a bias of their own"),
    "queries changed": (_changed, "changed in place"),
    "scores changed": (_changed_view, "no product"),
    "rows without keys": (_without_keys, "closes all keys of a query"),
    "multiplied": (lambda q, k: (q @ k.mT) * torch.linspace(0, 1, T).expand(T, T).to(q.dtype), "by a matrix"),
    "a gate alone": (lambda q, k: (q @ k.mT) * PAST.to(q.dtype), "differ by"),
    "no key closed": (lambda q, k: (q @ k.mT).masked_fill(~PAST, -1.0), "closes no key"),
    "no product": (lambda q, k: (q[..., :, None, :] * k[..., None, :, :]).sum(-1), "no product"),
}


@pytest.mark.parametrize("way", KEPT)
def test_what_cannot_be_recomputed_is_kept_as_it_is_and_named(way: str) -> None:
    scores, reason = KEPT[way]
    seen, model = seen_of(scores, *inputs(torch.float32))
    (call,) = seen
    assert reason in call.matrix
    (message,) = seen.matrices
    assert call.matrix in message
    assert "KB" in message
    assert seen.faithful is True
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), model.weights[0], rtol=0, atol=0)


def test_a_wrong_trace_is_found_by_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if division were taken for multiplication: the steps are wrong, and the matrix is kept.
    monkeypatch.setitem(score_trace._STEPS, "div", score_trace._STEPS["mul"])
    seen, _ = seen_of(lambda q, k: (q @ k.mT).div(3.0), *inputs(torch.float32))
    assert "differ" in seen[0].matrix
    assert seen.faithful is True


def test_memory_grows_with_the_length() -> None:
    def held(length: int) -> int:
        past = torch.ones(length, length, dtype=torch.bool).tril()
        seen, _ = seen_of(lambda q, k: (q @ k.mT / 3).masked_fill(~past, LEAST), *inputs(length=length))
        return int(seen.nbytes)

    assert held(512) < 2.2 * held(256)


def test_a_generation_is_one_matrix() -> None:
    q, k, v = inputs(torch.float32, 12)
    model = Block(lambda q, k: q @ k.mT / 3 + torch.zeros(q.shape[-2], k.shape[-2]))
    with torch.no_grad(), watch(model) as seen:
        for start, stop in ((0, 9), (9, 10), (10, 11), (11, 12)):
            model(q[..., start:stop, :], k[..., :stop, :].clone(), v[..., :stop, :].clone())
    (call,) = seen
    assert call.steps == [9, 1, 1, 1]
    assert call.matrix == ""
    assert seen.faithful is True
    torch.testing.assert_close(call.weights.tile([10], slice(None))[..., :11], model.weights[2])


class Counter(TorchFunctionMode):
    """A mode of the model's own."""

    def __init__(self) -> None:
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_the_model_are_opened_and_closed_as_without_a_watch() -> None:
    def around_the_product(q: Tensor, k: Tensor) -> Tensor:
        with Counter() as mode:
            e = q @ k.mT
        assert mode.count
        count = mode.count
        e = e * 2
        assert mode.count == count  # it is closed
        return e

    def after_the_product(q: Tensor, k: Tensor) -> Tensor:
        e = q @ k.mT
        mode = Counter()
        mode.__enter__()
        modes.append(mode)
        return e

    modes: list[Counter] = []
    seen, _ = seen_of(around_the_product, *inputs(torch.float32))
    assert seen.faithful is True
    model = Block(after_the_product)
    with torch.no_grad(), watch(model):
        model(*inputs(torch.float32))
    count = modes[0].count
    torch.ones(2).add(1)
    assert modes[0].count > count  # still open
    modes[0].__exit__(None, None, None)
    assert not torch._C._len_torch_function_stack()


def test_an_error_after_the_product_leaves_no_mode_behind() -> None:
    def fails(q: Tensor, k: Tensor) -> Tensor:
        raise ValueError(str((q @ k.mT).shape))

    model, qkv = Block(fails), inputs(torch.float32)
    with pytest.raises(ValueError, match=r"torch\.Size"), watch(model) as seen:
        model(*qkv)
    assert not torch._C._len_torch_function_stack()
    assert len(seen) == 0


def test_a_product_without_a_softmax_is_followed_once() -> None:
    class Expert(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x @ x.mT
            for _ in range(2 * score_trace.FUNCTIONS):
                x = x + 1
            return x

    model = Expert()
    with torch.no_grad(), watch(model):
        model(torch.randn(2, 3, 3))
        assert len(score_trace.without_softmax) == 1
        end_mode()
        model(torch.randn(2, 3, 3))
        assert not torch._C._len_torch_function_stack()
    assert not score_trace.without_softmax


def test_products_of_other_threads_are_not_followed() -> None:
    model = Block(lambda q, k: q @ k.mT / 3)

    def other() -> weakref.ref[Tensor]:
        a = torch.randn(4, 64, 64)
        a @ a
        return weakref.ref(a)

    with ThreadPoolExecutor(1) as pool:
        with watch(model) as seen:
            reference = pool.submit(other).result()
            model(*inputs(torch.float32))
        assert len(seen) == 1
        assert reference() is None
        assert pool.submit(torch._C._len_torch_function_stack).result() == 0


@pytest.mark.parametrize("way", ["of the tensor", "cast to float", "einsum and where", "baddbmm", "disentangled"])
@pytest.mark.parametrize("inside", [False, True], ids=["unset after", "unset inside"])
def test_a_default_device_does_not_hide_the_steps(way: str, inside: bool) -> None:
    """Also if it is unset between the product and the softmax, when our mode is open."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        e = WAYS[way](q, k)
        if inside:
            torch.set_default_device(None)
        return e

    qkv = inputs(torch.float32)
    torch.set_default_device("cpu")
    try:
        model = Block(scores)
        with torch.no_grad(), watch(model) as seen:
            model(*qkv)
        assert torch._C._len_torch_function_stack() == (0 if inside else 1)
        assert inside or torch.ones(2).device == torch.get_default_device()
    finally:
        torch.set_default_device(None)
    assert not torch._C._len_torch_function_stack()
    (call,) = seen
    assert call.matrix == ""
    assert seen.faithful is True
    torch.testing.assert_close(call.weights.dense(), model.weights[0].view(call.shape), rtol=1e-4, atol=1e-6)


def test_a_device_around_the_model_is_named_as_the_reason() -> None:
    """It would be closed in place of our mode, if that were open at its end."""
    model = Block(lambda q, k: torch.matmul(q, k.mT) / 3)
    with torch.no_grad(), watch(model) as seen:
        with torch.device("cpu"):
            model(*inputs(torch.float32))
        assert not torch._C._len_torch_function_stack()
    (call,) = seen
    assert "torch.device" in call.matrix or "function mode" in call.matrix
    assert seen.faithful is True


def test_a_default_device_is_unset_while_a_product_is_followed() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.mT

    model, x = Product(), torch.randn(2, 3, 4, 4)
    torch.set_default_device("cpu")
    try:
        with torch.no_grad(), watch(model):
            model(x)
            assert torch._C._len_torch_function_stack() == 2
            torch.set_default_device(None)
            assert torch._C._len_torch_function_stack() == 1
    finally:
        torch.set_default_device(None)
    assert not torch._C._len_torch_function_stack()


class TwoSoftmaxes(nn.Module):
    """Two sums of products are computed before the first softmax, as in LiLT."""

    num_heads = H

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b = q @ k.mT / 3, (q * 0.5) @ (k + 1).mT
        first, second = a + b, b + a * 0.5
        w = (second + PADDING.to(q.dtype)).softmax(-1)
        out = w @ v
        self.weights.append(w)
        w = (first + CAUSAL.to(q.dtype)).softmax(-1)
        self.weights.append(w)
        return out + w @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_scores_that_were_computed_before_another_softmax_are_followed(dtype: torch.dtype) -> None:
    model = TwoSoftmaxes()
    with torch.no_grad(), watch(model) as seen:
        model(*inputs(dtype))
    assert [call.matrix for call in seen] == ["", ""]
    assert seen.faithful is True
    for call, theirs in zip(seen, model.weights, strict=True):
        ours = call.weights.tile(slice(None), slice(None))
        assert (ours - theirs.float()).abs().mean() < (2e-5 if dtype == torch.bfloat16 else 1e-8)
    assert not torch._C._len_torch_function_stack()


@pytest.mark.parametrize("way", ["relative positions", "disentangled"])
def test_added_products_are_saved_with_a_trace(way: str, tmp_path: Path) -> None:
    seen, _ = seen_of(WAYS[way], *inputs(torch.bfloat16))
    seen.save(tmp_path / "trace")
    (call,) = load_trace(tmp_path / "trace")
    torch.testing.assert_close(call.weights.dense(), seen[0].weights.dense(), rtol=0, atol=0)
    assert call.fidelity().faithful


def test_rows_are_compared_by_sample_where_nothing_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []
    original = written_attention.recomputed_record

    def noted(*args: Any) -> Any:
        compared.append(args[-1])
        return original(*args)

    monkeypatch.setattr(written_attention, "recomputed_record", noted)
    model = nn.Sequential(TwoSoftmaxes(), Block(lambda q, k: q @ k.mT))
    for part, x in zip(model, (inputs(torch.float32), inputs(torch.float32)), strict=True):
        with torch.no_grad(), watch(part):
            part(*x)
    assert compared
    assert not any(compared)
