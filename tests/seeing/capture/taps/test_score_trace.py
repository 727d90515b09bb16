"""Attention that a module writes out is recomputed from queries and keys: no T × T matrix is held, or it is named."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
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

if TYPE_CHECKING:
    from pathlib import Path

B, H, T, D = 2, 3, 160, 8
Scores = Callable[[Tensor, Tensor], Tensor]
PAST = torch.ones(T, T, dtype=torch.bool).tril()
LEAST = torch.finfo(torch.bfloat16).min
CAUSAL = torch.zeros(B, 1, T, T).masked_fill(~PAST, LEAST)
PADDING = torch.zeros(B, 1, 1, T)
PADDING[1, ..., -9:] = LEAST
SLOPES = torch.arange(B * H).view(-1, 1, 1) * torch.linspace(-1, 0, T)


class Block(nn.Module):
    """A module that writes attention out; `weights` has those it used."""

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores, self.num_heads = scores, H
        self.weights: list[Tensor] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = self.scores(q, k)
        w = scores.softmax(-1).to(v.dtype)
        self.weights.append(w.detach().clone())
        return w.view(-1, *w.shape[-2:]) @ v.reshape(-1, *v.shape[-2:]) if w.dim() == 3 else w @ v


def inputs(dtype: torch.dtype = torch.bfloat16, length: int = T) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, length, D) * 2 for _ in range(3))
    return q.to(dtype), k.to(dtype), v.to(dtype)


def seen_of(scores: Scores, *qkv: Tensor) -> tuple[Any, Block]:
    model = Block(scores)
    with torch.no_grad(), watch(model) as seen:
        model(*qkv)
    assert not torch._C._len_torch_function_stack(), "a mode stayed on the stack"
    return seen, model


def _in_place(q: Tensor, k: Tensor) -> Tensor:
    e = q @ k.mT
    e /= D**0.5
    e += CAUSAL.to(e.dtype)
    return e.float()


def _filled(q: Tensor, k: Tensor) -> Tensor:
    e = torch.matmul(q, k.transpose(2, 3)) * 0.25
    closed = (~PAST).view(1, 1, T, T).expand_as(e)
    e.masked_fill_(closed, LEAST)
    return e.float() + PADDING


def _merged(q: Tensor, k: Tensor) -> Tensor:
    e = torch.bmm(q.flatten(0, 1) * 0.5, k.flatten(0, 1).transpose(1, 2))
    e = e.view(B, H, T, T) + CAUSAL.to(e.dtype)
    return torch.max(e, torch.tensor(LEAST, dtype=e.dtype)).view(B * H, T, T)


def _with_slopes(q: Tensor, k: Tensor) -> Tensor:
    e = SLOPES.to(q.dtype).baddbmm(q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=0.3)
    return e.view(B, H, T, T) + CAUSAL.to(e.dtype)


def _einsum(q: Tensor, k: Tensor) -> Tensor:
    e = torch.einsum("bhkd,bhqd->bhqk", k, q) * torch.tensor(0.3)
    return torch.where(PAST, e, torch.tensor(LEAST, dtype=e.dtype))


def _distances(q: Tensor, count: int = 2 * T) -> Tensor:
    """A vector for each distance."""
    angles = torch.arange(count)[:, None] * torch.logspace(0, -2, D)
    return angles.sin().to(q.dtype).expand(B, H, count, D)


def _shifted(p: Tensor) -> Tensor:
    """XLNet: row i begins with column T − i."""
    p = p.reshape(B, H, 2 * T, T)[:, :, 1:, :].reshape(B, H, T, 2 * T - 1)
    return torch.index_select(p, 3, torch.arange(T))


def _padded_shift(p: Tensor) -> Tensor:
    """Transformer-XL: row i begins with column T − 1 − i."""
    p = torch.nn.functional.pad(p, (1, 0)).view(B, H, 2 * T, T)
    return p[:, :, 1:].view(B, H, T, 2 * T - 1)[..., :T]


def _far_distances(q: Tensor) -> Tensor:
    return _distances(q, 3 * T)


def _shifted_by_two(p: Tensor) -> Tensor:
    """Funnel: row i begins with column 2 · T − 2 · i."""
    return p.reshape(B, H, 3 * T, T)[:, :, 2:, :].reshape(B, H, T, 3 * T - 2)[..., :T]


BUCKETS = (torch.arange(T)[:, None] - torch.arange(T)).clamp(-20, 19) + 20


def _disentangled(q: Tensor, k: Tensor) -> Tensor:
    """DeBERTa: from the query to the position of the key, and from the key to the position of the query."""
    r, score = _distances(q, 40), 0
    score += torch.gather(q @ r.mT, -1, BUCKETS.expand(B, H, T, T)) * 0.5  # type: ignore[assignment]
    to_query = torch.gather(k @ (r + 0.5).mT, dim=-1, index=(39 - BUCKETS).expand(B, H, T, T)).transpose(-1, -2)
    score += to_query / 3
    return score  # type: ignore[return-value]


WAYS: dict[str, Scores] = {
    "in place": _in_place,
    "filled": _filled,
    "merged heads": _merged,
    "baddbmm": _with_slopes,
    "einsum and where": _einsum,
    "of the tensor": lambda q, k: (q @ k.mT).where(PAST, LEAST).div(3.0).sub(-PADDING.to(q.dtype)),
    "cast to float": lambda q, k: (q @ k.mT).float().mul(0.2).clamp(min=-1e30) + CAUSAL,
    "zeros": lambda q, k: torch.baddbmm(q.new_zeros(B * H, T, T), q.flatten(0, 1), k.flatten(0, 1).mT) * 0.3 + 0,
    "nothing between": lambda q, k: (q * 0.3) @ k.mT,
    "two products": lambda q, k: (q @ k.mT) / 3 + (q * 2) @ (k + 1).mT * 0.1 + CAUSAL.to(q.dtype),
    "three products": lambda q, k: 0 + (q @ k.mT + (q * 0.2) @ (k + 1).mT + k @ q.mT) * 0.3,
    "relative positions": lambda q, k: (q @ k.mT + _shifted((q + 1) @ _distances(q).mT)) * 0.3,
    "positions first": lambda q, k: _shifted(q @ _distances(q).mT * 0.5) + q @ k.mT,
    "padded positions": lambda q, k: q @ k.mT * 0.3 + _padded_shift(q @ _distances(q)[..., 1:, :].mT),
    "every second position": lambda q, k: q @ k.mT * 0.3 + _shifted_by_two(q @ _far_distances(q).mT),
    "disentangled": lambda q, k: q @ (k / 3).mT + _disentangled(q, k) + CAUSAL.to(q.dtype),
    "transposed": lambda q, k: q @ k.mT * 0.1 + (k @ (q + 1).mT * 0.1).transpose(-1, -2),
    "gated": lambda q, k: (q @ k.mT / 3) * PAST.to(q.dtype) + -1e4 * (1 - PAST.to(q.dtype)),
}


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
    p = q @ _distances(q).mT
    moved = p.reshape(B, H, 2 * T, T)
    p[..., 1:, :] *= 2
    return q @ k.mT + moved[:, :, 1:, :].reshape(B, H, T, 2 * T - 1)[..., :T]


def _gathered_by_rows(q: Tensor, k: Tensor) -> Tensor:
    index = (torch.arange(T)[:, None] * 7 + torch.arange(T)) % 40
    return q @ k.mT + torch.gather(q @ _distances(q, 40).mT, -1, index.expand(B, H, T, T))


def _changed_positions(q: Tensor, k: Tensor) -> Tensor:
    index = BUCKETS.clone()
    e = q @ k.mT + torch.gather(q @ _distances(q, 40).mT, -1, index.expand(B, H, T, T))
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
    "positions alone": (lambda q, k: _shifted(q @ _distances(q).mT), "moved along the keys"),
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


LONG = 512
UNSAMPLED = torch.ones(LONG, dtype=torch.bool).index_fill(0, torch.arange(64) * (LONG - 1) // 63, False)
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


@pytest.mark.parametrize("where", ["queries", "distances"])
def test_a_tensor_of_an_added_product_changed_after_the_call_is_noticed(where: str) -> None:
    q, k, v = inputs(torch.float32)
    tensors = {"queries": q * 0.5, "distances": _distances(q).clone()}
    model = Block(lambda q, k: q @ k.mT + _shifted(tensors["queries"] @ tensors["distances"].mT))
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
        p = q @ _distances(q).mT
        if change == "the product before":
            p.select(-2, 5).zero_()
        shifted = _shifted(p)
        if change == "the shifted product":
            shifted.select(-2, 5).zero_()
        e = q @ k.mT * 0.1 + shifted
        if change == "the sum":
            e.select(-2, 5).zero_()
        return e

    model = Block(changed)
    with torch.inference_mode(), watch(model) as seen:
        model(*inputs(torch.float32))
    assert "differ by" in seen[0].matrix
    torch.testing.assert_close(seen[0].weights.dense(), model.weights[0].clone())


@pytest.mark.parametrize("way", ["relative positions", "disentangled"])
def test_added_products_are_saved_with_a_trace(way: str, tmp_path: Path) -> None:
    seen, _ = seen_of(WAYS[way], *inputs(torch.bfloat16))
    seen.save(tmp_path / "trace")
    (call,) = load_trace(tmp_path / "trace")
    torch.testing.assert_close(call.weights.dense(), seen[0].weights.dense(), rtol=0, atol=0)
    assert call.fidelity().faithful


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
