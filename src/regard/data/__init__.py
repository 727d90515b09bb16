"""Text, pictures and sound in, batches out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..special_tokens import BEGIN, END, PAD, UNKNOWN
from .rows import Pair, PairReader
from .tokenizer import Tokenizer
from .tokenizer_pair import LabelSet, TokenizerPair

if TYPE_CHECKING:
    from .batches import Batch, Batches
    from .encoding import EncodedCorpus

__all__ = [
    "BEGIN",
    "END",
    "PAD",
    "UNKNOWN",
    "Batch",
    "Batches",
    "EncodedCorpus",
    "LabelSet",
    "Pair",
    "PairReader",
    "Tokenizer",
    "TokenizerPair",
]

# These need torch or numpy, which take a second to import: `regard data phrasebook` should not wait for them.
_HEAVY = {"Batch": "batches", "Batches": "batches", "EncodedCorpus": "encoding"}


def __getattr__(name: str) -> object:
    if name not in _HEAVY:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
    return getattr(import_module(f".{_HEAVY[name]}", __name__), name)
