"""watch leaves the model as it was, sees modules that are added later, and names what ran unseen."""

from __future__ import annotations

import asyncio
import dis
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType, ModuleType
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


def test_a_thread_and_a_task_without_a_watch_are_not_in_that_of_others() -> None:
    """Of a pool of threads that was there before: a server's, whose work comes from many users."""
    model = Kernel()
    lengths: dict[int, list[int]] = {}

    async def user(length: int) -> None:
        with torch.no_grad(), watch(model) as seen:
            await asyncio.sleep(0)
            model(torch.randn(1, 2, length, 4))
            await asyncio.sleep(0)
            await asyncio.to_thread(model, torch.randn(1, 2, length, 4))  # which copies the context of the task
        lengths[length] = [call.shape[-1] for call in seen]

    async def everybody() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
            users = [asyncio.create_task(user(length)) for length in (5, 6, 7)]
            await asyncio.sleep(0)
            pool.submit(model, torch.randn(1, 2, 31, 4)).result()
            await asyncio.gather(*users)

    asyncio.run(everybody())
    assert lengths == {5: [5, 5], 6: [6, 6], 7: [7, 7]}


def test_leaving_a_watch_that_was_not_entered_leaves_the_taps_of_others() -> None:
    before, model = F.scaled_dot_product_attention, Kernel()
    with torch.no_grad(), watch(model) as seen:
        watch(model).__exit__(None, None, None)
        model(torch.randn(1, 2, 3, 4))
    assert len(seen) == 1
    assert F.scaled_dot_product_attention is before
    assert len(watched(model)) == 1


def watched(model: nn.Module) -> regard.Seen:
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 2, 3, 4))
    return seen


CHECKED = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}
"""The instructions after which Python looks for a signal; it also does where a function begins."""


def interrupted(at: int, model: nn.Module) -> bool:
    """Watch, with Ctrl-C at the at-th moment in code of regard at which it can come; whether there were so many."""
    left, before = at, dict[FrameType, int]()

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "/regard/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        may_come = event == "call" or (event == "opcode" and before.get(frame) in CHECKED)
        before[frame] = frame.f_code.co_code[frame.f_lasti]
        left -= may_come
        if left == 0 and may_come:
            sys.settrace(None)
            raise KeyboardInterrupt
        return follow

    sys.settrace(follow)
    try:
        watched(model)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


def patched_functions() -> list[object]:
    return [
        *(vars(owner).get(name) for owner in (F, torch, Tensor) for name in ("softmax", "matmul", "sum")),
        *(F.scaled_dot_product_attention, F.multi_head_attention_forward, threading.Thread.start, imported_by_name),
    ]


def test_an_interrupt_at_any_instruction_restores_pytorch() -> None:
    """REGARD_EXAMPLES moments, all of them if there are that many (`make fuzz`); another thread can go on."""
    model = Kernel()
    watched(model)
    before, count = patched_functions(), 1
    while interrupted(1 << count, model):
        count += 1
    examples = int(os.environ.get("REGARD_EXAMPLES", "150"))
    chosen = random.Random(0)
    for at in sorted({chosen.randrange(1, 1 << count) for _ in range(examples)}):
        if not interrupted(at, model):
            continue
        assert patched_functions() == before, f"interrupted at instruction {at}"
        assert not opened.watches
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(watched, model).result(20)
        assert len(seen) == 1, f"interrupted at instruction {at}"
        assert len(watched(model)) == 1, f"interrupted at instruction {at}"
        assert seen.faithful
        assert patched_functions() == before


def test_calls_of_a_module_added_between_two_watches_are_seen() -> None:
    model, x = nn.Sequential(Kernel()), torch.randn(1, 2, 4, 8)
    for count in (1, 2):
        with torch.no_grad(), watch(model) as seen:
            model(x)
        assert seen.names == [str(n) for n in range(count)]
        assert [call.layer for call in seen] == list(range(count))
        model.append(Kernel())
