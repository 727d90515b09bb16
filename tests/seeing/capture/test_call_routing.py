"""Calls are passed on while other threads open and close watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.capture import call_routing

if TYPE_CHECKING:
    from types import FrameType


class Kernel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def test_a_watch_that_another_thread_closes_during_a_call_stops_no_model() -> None:
    """After each line of the functions that pass a call on, as a switch of threads may be after each."""
    model, x, lines = Kernel(), torch.randn(1, 2, 3, 4), 0
    functions = {call_routing.try_capture.__code__, call_routing._watches_of.__code__}
    while True:
        with torch.no_grad(), watch(model):
            opened, left, module = call_routing.watches, lines, model

            def follow(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal left
                if frame.f_code not in functions:
                    return None
                if event == "line":
                    left -= 1
                    if left == 0:
                        call_routing.watches = ()
                return follow

            sys.settrace(follow)
            try:
                module(x)
            finally:
                sys.settrace(None)
                call_routing.watches = opened
        if left > 0:
            break
        lines += 1
    assert lines > 5
