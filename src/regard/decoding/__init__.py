"""Decoding: greedy and beam search, sampling, translating."""

from __future__ import annotations

from .hypothesis import Hypothesis
from .sample import Sample
from .search import search

__all__ = ["Hypothesis", "Sample", "search"]
