"""Decoding: greedy and beam search, sampling, translating, going on with a text, exporting."""

from __future__ import annotations

from .ctranslate import CTranslate2, export_ctranslate2
from .generate import generate
from .hypothesis import Hypothesis
from .sample import Sample
from .search import search
from .translate import Translation, translate

__all__ = [
    "CTranslate2",
    "Hypothesis",
    "Sample",
    "Translation",
    "export_ctranslate2",
    "generate",
    "search",
    "translate",
]
