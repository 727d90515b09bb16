"""Attention of short sequences in bfloat16 on a CPU: as exact as PyTorch's kernel, under a Transformer's masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard as r
from regard import attend
from regard.attention.backends import sdpa
from regard.attention.backends.short_attention import LONGEST
from tests.support.attention_cases import within_budget

if TYPE_CHECKING:
    from regard import Mask

LENGTHS = torch.tensor([13, 1, 9, 20])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the backend used batched products."""
    used: list[bool] = []

    def observed(*given: object, **options: object) -> torch.Tensor | None:
        out = original(*given, **options)
        used.append(out is not None)
        return out

    original = sdpa.attend_short
    monkeypatch.setattr(sdpa, "attend_short", observed)
    return used


@pytest.mark.parametrize("time", [20, 13])  # rows of weights that fill a vector of numbers, and such that do not
@pytest.mark.parametrize("kind", ["none", "causal", "padding"])
def test_errors_are_within_twice_those_of_the_kernel(kind: str, time: int, calls: list[bool]) -> None:
    lengths = LENGTHS.clamp(max=time)
    mask: Mask | None
    mask, dense = {
        "none": (None, None),
        "causal": (r.causal(), torch.ones(time, time, dtype=torch.bool).tril()),
        "padding": (r.padding(lengths), (torch.arange(time) < lengths[:, None])[:, None, None]),
    }[kind]
    generator = torch.Generator().manual_seed(0)
    # As a layer makes them: heads beside each other in one row.
    rows = [torch.randn(4, time, 3 * 16, generator=generator).bfloat16().requires_grad_() for _ in range(3)]
    g = torch.randn(4, 3, time, 16, generator=generator).bfloat16()
    heads = [x.unflatten(-1, (3, 16)).transpose(1, 2) for x in rows]
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(*heads, mask=mask)
        ours = [out, *torch.autograd.grad(out, rows, g)]
    assert calls == [True]
    assert out.dtype == torch.bfloat16

    def kernel(dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in rows]
        q, k, v = (x.unflatten(-1, (3, 16)).transpose(1, 2) for x in leaves)
        z = scaled_dot_product_attention(q, k, v, dense)
        return [z, *torch.autograd.grad(z, leaves, g.to(dtype))]

    for got, theirs, truth in zip(ours, kernel(torch.bfloat16), kernel(torch.float64), strict=True):
        within_budget(got.detach(), theirs.detach(), truth.detach(), torch.bfloat16)


def test_a_second_derivative_is_that_of_the_formula(calls: list[bool]) -> None:
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(2, 2, 5, 8, generator=generator).bfloat16() for _ in range(3)]

    def second(dtype: torch.dtype, autocast: bool) -> torch.Tensor:
        q, k, v = (x.to(dtype).requires_grad_() for x in given)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            z = attend(q, k, v)
            (first,) = torch.autograd.grad(z.square().sum(), q, create_graph=True)
            (again,) = torch.autograd.grad(first.square().sum(), k)
        return again.double()

    truth, got = second(torch.float64, False), second(torch.bfloat16, True)
    assert calls == [True]
    assert (got - truth).abs().max() < 0.05 * truth.abs().max()


def test_batched_cotangents(calls: list[bool]) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8).bfloat16().requires_grad_() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        z = attend(q, k, v, mask=r.causal())
    assert calls == [True]
    cotangents = torch.randn(4, *z.shape).bfloat16()
    together = torch.autograd.grad(z, (q, k, v), cotangents, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(z, (q, k, v), g, retain_graph=True) for g in cotangents]
    for got, *each in zip(together, *single, strict=True):
        torch.testing.assert_close(got, torch.stack(each))


@pytest.mark.parametrize("mask", [None, r.causal(), r.padding(torch.tensor([3, 5]))])
def test_the_default_device_changes_nothing(mask: Mask | None, calls: list[bool]) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8).bfloat16().requires_grad_() for _ in range(3))

    def gradients(device: str) -> list[torch.Tensor]:
        with torch.device(device), torch.autocast("cpu", torch.bfloat16):
            z = attend(q, k, v, mask=mask)
            return [z, *torch.autograd.grad(z.sum(), (q, k, v))]

    torch.testing.assert_close(gradients("meta"), gradients("cpu"), rtol=0.0, atol=0.0)
    assert calls == [True, True]


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_no_queries_or_no_keys(queries: int, keys: int, calls: list[bool]) -> None:
    q, k, v = (torch.randn(2, 3, time, 8).bfloat16().requires_grad_() for time in (queries, keys, keys))
    with torch.autocast("cpu", torch.bfloat16):
        z = attend(q, k, v)
    assert calls == [True]
    gradients = torch.autograd.grad(z, (q, k, v), torch.ones_like(z))
    assert z.shape == q.shape
    assert not any(bool(x.any()) for x in (z, *gradients))


def test_a_query_that_sees_nothing_is_left_to_the_kernel(calls: list[bool]) -> None:
    q, k, v = (torch.randn(2, 1, 4, 8).bfloat16().requires_grad_() for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, mask=r.padding(torch.tensor([0, 3])))
    assert calls == [False]
    assert bool((out[0] == 0).all())
    assert bool(out[1].isfinite().all())


@pytest.mark.parametrize("case", ["long", "float32", "without gradients", "shared keys", "dropout"])
def test_other_calls_are_left_to_the_kernel(case: str, calls: list[bool]) -> None:
    time, heads = (LONGEST + 1 if case == "long" else 6), (2 if case == "shared keys" else 4)
    q = torch.randn(2, 4, time, 8).bfloat16()
    k, v = (torch.randn(2, heads, time, 8).bfloat16() for _ in range(2))
    if case == "float32":
        q, k, v = q.float(), k.float(), v.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=case != "float32"):
        out = attend(q.requires_grad_(case != "without gradients"), k, v, dropout=0.5 if case == "dropout" else 0.0)
    assert out.shape == q.shape
    assert calls == []
