"""The weights of a call of `attend`, which are never stored as a matrix."""

from .weight_statistics import Stats, Top
from .weights import Weights

__all__ = ["Stats", "Top", "Weights"]
