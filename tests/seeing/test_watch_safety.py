"""watch leaves the model as it was: after exceptions, in its bits, between threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import regard
from regard import watch
from tests.seeing.test_watch import Attention, Stack

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore")


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))

    def forward(self, x: Tensor) -> Tensor:
        self.attention(x)
        raise ArithmeticError("on purpose")


def test_after_an_exception_everything_is_as_it_was() -> None:
    before = F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.softmax, imported_by_name
    with pytest.raises(ArithmeticError), watch(Fails()) as seen:
        Fails()(torch.randn(1, 3, 16))
    model = Fails()
    with pytest.raises(ArithmeticError), watch(model) as seen:
        model(torch.randn(1, 3, 16))
    assert len(seen) == 1  # what happened before it failed is there
    assert seen.faithful
    assert before == (F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.softmax, imported_by_name)
    model = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    model(torch.randn(1, 3, 16))
    assert len(seen) == 1  # outside the block nothing is added


def test_the_model_computes_the_same_bits() -> None:
    model, x = (
        Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        torch.randn(2, 40, 16),
    )
    expected = model(x)
    expected.square().sum().backward()
    gradient = model.q.weight.grad
    model.zero_grad()
    with watch(model) as seen:
        out = model(x)
        out.square().sum().backward()
    assert torch.equal(out, expected)
    assert torch.equal(model.q.weight.grad, gradient)  # type: ignore[arg-type]
    assert len(seen) == 1


@pytest.mark.parametrize("where", ["autocast", "inference_mode", "math only"])
def test_the_same_bits_under_what_else_may_be_on(where: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model, x = Stack(), torch.randn(2, 40, 16)
    around: dict[str, Callable[[], Any]] = {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "inference_mode": torch.inference_mode,
        "math only": lambda: sdpa_kernel([SDPBackend.MATH]),
    }
    with around[where]():
        expected = model(x)
        with watch(model) as seen:
            out = model(x)
    assert out.dtype == expected.dtype
    assert torch.equal(out, expected)
    assert seen.faithful, seen


def test_recomputation_in_the_backward_pass_is_not_a_call() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)), torch.randn(2, 5, 16)
    with watch(model) as seen:
        checkpoint(model, x, use_reentrant=False).sum().backward()  # type: ignore[union-attr]
    assert len(seen) == 1


def test_two_models_in_two_threads_see_their_own() -> None:
    models = [Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)) for _ in range(2)]
    by_thread: dict[int, regard.Seen] = {}
    start = threading.Barrier(2)

    def work(at: int) -> None:
        with torch.no_grad(), watch(models[at]) as seen:
            start.wait()
            for _ in range(20):
                models[at](torch.randn(1, 3 + at, 16))
        by_thread[at] = seen

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(by_thread[at]) for at in range(2)] == [20, 20]
    assert all(call.shape[-1] == 3 + at for at in range(2) for call in by_thread[at])
    assert all(by_thread[at].faithful for at in range(2))


def test_one_model_in_two_threads_each_watching() -> None:
    model = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    by_thread: dict[int, list[int]] = {}
    start = threading.Barrier(2)

    def work(at: int) -> None:
        with torch.no_grad(), watch(model) as seen:
            start.wait()
            for _ in range(10):
                model(torch.randn(1, 3 + at, 16))
            start.wait()
        by_thread[at] = [call.shape[-1] for call in seen]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert by_thread == {0: [3] * 10, 1: [4] * 10}


def test_a_model_run_in_a_thread_of_its_own_is_seen() -> None:
    model = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    with watch(model) as seen:
        thread = threading.Thread(target=model, args=(torch.randn(1, 3, 16),))
        thread.start()
        thread.join()
    assert len(seen) == 1
