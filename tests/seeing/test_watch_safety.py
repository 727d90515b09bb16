"""watch leaves the model as it was, sees modules that are added later, and names what ran unseen."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import regard
from regard import watch
from regard.seeing.watch import opened, report
from tests.seeing.test_watch import Attention, Stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def test_taps_that_cannot_be_put_in_place_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def __hash__(self) -> int:
            raise TypeError("not to be hashed")

        def __call__(self) -> None: ...

    home: Any = ModuleType("someones_model")
    home.odd, home.sdpa = Odd(), F.scaled_dot_product_attention
    monkeypatch.setitem(sys.modules, "someones_model", home)
    mine = type("Mine", (Kernel,), {"__module__": "someones_model"})()
    before = F.scaled_dot_product_attention
    with watch(mine):
        assert home.sdpa is F.scaled_dot_product_attention is not before
    assert home.sdpa is F.scaled_dot_product_attention is before

    class Broken(ModuleType):
        @property
        def __dict__(self) -> dict[str, Any]:
            raise RuntimeError("not to be read")

    monkeypatch.setitem(sys.modules, "someones_model", Broken("someones_model"))
    with pytest.raises(RuntimeError, match="not to be read"), watch(mine):
        pass
    assert F.scaled_dot_product_attention is before
    assert "softmax" not in vars(Tensor)


class Kernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_a_watch_that_another_thread_closes_during_a_call_stops_no_model() -> None:
    """After each line of the functions that pass a call on, as a switch of threads may be after each."""
    model, x, lines = Kernel(), torch.randn(1, 2, 3, 4), 0
    functions = {report.__code__, report.__globals__["_watches_of"].__code__}
    while True:
        with torch.no_grad(), watch(model):
            before, left, module = opened.watches, lines, model

            def follow(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal left
                if frame.f_code not in functions:
                    return None
                if event == "line":
                    left -= 1
                    if left == 0:
                        opened.watches = ()
                return follow

            sys.settrace(follow)
            try:
                module(x)
            finally:
                sys.settrace(None)
                opened.watches = before
        if left > 0:
            break
        lines += 1
    assert lines > 5


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


@pytest.mark.parametrize("models", [1, 2])
def test_a_watch_has_the_calls_of_its_own_thread(models: int) -> None:
    """Of one model that two threads watch, or of a model each."""
    own = [Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v)) for _ in range(models)] * (3 - models)
    by_thread: dict[int, regard.Seen] = {}
    start = threading.Barrier(2)

    def work(at: int) -> None:
        with torch.no_grad(), watch(own[at]) as seen:
            start.wait()
            for _ in range(20):
                own[at](torch.randn(1, 3 + at, 16))
            start.wait()
        by_thread[at] = seen

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {at: [call.shape[-1] for call in seen] for at, seen in by_thread.items()} == {0: [3] * 20, 1: [4] * 20}
    assert all(seen.faithful for seen in by_thread.values())


def test_a_model_run_in_a_thread_of_its_own_is_seen() -> None:
    model = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
    with watch(model) as seen:
        thread = threading.Thread(target=model, args=(torch.randn(1, 3, 16),))
        thread.start()
        thread.join()
    assert len(seen) == 1


def test_calls_of_a_module_added_between_two_watches_are_seen() -> None:
    model, x = nn.Sequential(Kernel()), torch.randn(1, 2, 4, 8)
    for count in (1, 2):
        with torch.no_grad(), watch(model) as seen:
            model(x)
        assert seen.names == [str(n) for n in range(count)]
        assert [call.layer for call in seen] == list(range(count))
        model.append(Kernel())
