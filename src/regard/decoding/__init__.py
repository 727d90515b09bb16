"""Decoding: greedy and beam search, sampling, translating, exporting."""

from __future__ import annotations

from .ctranslate import CTranslate2, export_ctranslate2
from .hypothesis import Hypothesis
from .sample import Sample
from .search import search
from .translate import Translation, translate

__all__ = ["CTranslate2", "Hypothesis", "Sample", "Translation", "export_ctranslate2", "search", "translate"]
