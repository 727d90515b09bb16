"""Sparklines."""

from __future__ import annotations

import torch

from regard.seeing.drawing.shaded_text import sparkline


def test_bars_are_means_scaled_to_the_largest() -> None:
    assert sparkline(torch.tensor([0.0, 1.0]), 4) == "  ██"
    assert sparkline(torch.arange(120.0), 3) == "▂▅█"
    assert sparkline(torch.zeros(5), 2) == "  "
