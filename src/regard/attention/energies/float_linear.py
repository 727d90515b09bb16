"""A linear layer whose matrix other code reads."""

from __future__ import annotations

from torch import nn


class FloatLinear(nn.Linear):
    """`nn.Linear` that keeps its matrix in floating point.

    PyTorch's dynamic quantization replaces layers whose type is exactly `nn.Linear`; `weight` of what it puts there is
    a method. Layers whose matrix is split, or joined to others for one product, are of this type, and stay as they are.
    """
