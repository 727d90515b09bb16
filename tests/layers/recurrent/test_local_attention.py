"""Local attention against Luong et al. 2015."""

from __future__ import annotations

import math

import torch

from regard.layers import LocalAttention


def test_local_windows_are_luongs() -> None:
    lengths, places = torch.tensor([9, 4]), torch.arange(9)
    h = torch.randn(2, 1, 6)
    closed, scale = LocalAttention(6, 2, "local-m")(h, 5, lengths, places)
    assert scale is None
    assert (closed[0, 0] == 0).nonzero().flatten().tolist() == [3, 4, 5, 6, 7]
    assert (closed[1, 0] == 0).nonzero().flatten().tolist() == [1, 2, 3, 4, 5]  # stays at the last word, 3
    predictive = LocalAttention(6, 2, "local-p")
    closed, scale = (x.detach() for x in predictive(h, 5, lengths, places))
    for b, length in enumerate(lengths.tolist()):
        middle = length * torch.sigmoid(predictive.outer(torch.tanh(predictive.inner(h[b, 0])))).item()
        for s in places.tolist():
            assert (closed[b, 0, s] == 0) == (abs(s - middle) <= 2)
            assert math.isclose(scale[b, 0, s], math.exp(-((s - middle) ** 2) / (2 * 1.0**2)), rel_tol=1e-4)
