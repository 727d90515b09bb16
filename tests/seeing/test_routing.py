"""Patching: functions imported by name are replaced too, and errors restore the originals."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.watch import opened, report

if TYPE_CHECKING:
    from types import FrameType


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_taps_that_cannot_be_put_in_place_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def __hash__(self) -> int:
            raise TypeError("not to be hashed")

        def __call__(self) -> None: ...

    home: Any = ModuleType("someones_model")
    home.odd, home.sdpa = Odd(), F.scaled_dot_product_attention
    monkeypatch.setitem(sys.modules, "someones_model", home)
    mine = type("Mine", (Attention,), {"__module__": "someones_model"})()
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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
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
