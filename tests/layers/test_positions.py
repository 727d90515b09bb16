"""Position encodings against their published formulas."""

from __future__ import annotations

import math

import torch

from regard import Alibi
from regard.layers import RotaryPositions, SinusoidalPositions


def test_sinusoidal_is_the_published_formula() -> None:
    got = SinusoidalPositions(8)(torch.zeros(1, 5, 8), first=3)
    for p in range(5):
        for i in range(4):
            angle = (p + 3) / 10_000 ** (2 * i / 8)
            assert math.isclose(got[0, p, 2 * i], math.sin(angle), abs_tol=1e-6)
            assert math.isclose(got[0, p, 2 * i + 1], math.cos(angle), abs_tol=1e-6)


def test_rotary_products_know_only_the_distance() -> None:
    rotary, q, k = RotaryPositions(8), torch.randn(1, 1, 8), torch.randn(1, 1, 8)
    products = [(rotary(q, m) @ rotary(k, m + 5).mT).item() for m in (0, 1, 40)]
    assert max(products) - min(products) < 1e-5
    assert abs(products[0] - (rotary(q, 0) @ rotary(k, 6).mT).item()) > 1e-3


def test_positions_do_not_depend_on_the_default_precision() -> None:
    x = torch.randn(1, 2, 600, 8)
    want = SinusoidalPositions(8)(x), RotaryPositions(8)(x), Alibi(12).slopes
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = SinusoidalPositions(8)(x), RotaryPositions(8)(x), Alibi(12).slopes
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
