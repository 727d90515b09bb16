"""A grammar that generates English–French sentence pairs with gold alignments."""

from __future__ import annotations

from .sentence_grammar import PhrasebookPairs, pairs

__all__ = ["PhrasebookPairs", "pairs"]
