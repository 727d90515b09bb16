"""A grammar that generates English–French and English–Spanish sentence pairs with gold alignments."""

from __future__ import annotations

from .bilingual_phrase import Language
from .sentence_grammar import TAGS, PhrasebookPairs, examples, pairs

__all__ = ["TAGS", "Language", "PhrasebookPairs", "examples", "pairs"]
