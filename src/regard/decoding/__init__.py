"""Decoding: greedy and beam search, sampling, translation, text generation, classification, export."""

from __future__ import annotations

from .ctranslate2_export import CTranslate2, export_ctranslate2
from .hypothesis import Hypothesis
from .sampling import Sample
from .search import search
from .text_generation import generate
from .translation import Translation, translate

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
