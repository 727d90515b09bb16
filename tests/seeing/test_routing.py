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
from regard.seeing import routing
from regard.seeing.watch import TAPS

if TYPE_CHECKING:
    from types import FrameType


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def test_every_tap_says_what_it_sees() -> None:
    assert len({tap.sees for tap in TAPS}) == len(TAPS)


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

    monkeypatch.setattr(routing, "_python_modules", lambda parts: 1 / 0)
    with pytest.raises(ZeroDivisionError), watch(mine):
        pass
    assert F.scaled_dot_product_attention is before
    assert "softmax" not in vars(Tensor)


class Kernel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_a_watch_that_another_thread_closes_during_a_call_stops_no_model() -> None:
    """After each line of the functions that pass a call on, as a switch of threads may be after each."""
    model, x, lines = Kernel(), torch.randn(1, 2, 3, 4), 0
    functions = {routing.report.__code__, routing._watches_of.__code__}
    while True:
        with torch.no_grad(), watch(model):
            opened, left, module = routing.watches, lines, model

            def follow(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal left
                if frame.f_code not in functions:
                    return None
                if event == "line":
                    left -= 1
                    if left == 0:
                        routing.watches = ()
                return follow

            sys.settrace(follow)
            try:
                module(x)
            finally:
                sys.settrace(None)
                routing.watches = opened
        if left > 0:
            break
        lines += 1
    assert lines > 5
