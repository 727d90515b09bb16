"""Patching: functions imported by name are replaced too, and errors restore the originals."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.capture.taps import TAPS, patching


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

    monkeypatch.setattr(patching, "_python_modules", lambda parts: 1 / 0)
    with pytest.raises(ZeroDivisionError), watch(mine):
        pass
    assert F.scaled_dot_product_attention is before
    assert "softmax" not in vars(Tensor)
