"""Text, pictures and sound in, batches out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import BEGIN, END, PAD, UNKNOWN, Batch
    from .batches import Batches
    from .encoded_corpus import EncodedCorpus
    from .label_set import LabelSet
    from .pair import Pair
    from .pair_reader import PairReader
    from .tokenizer import Tokenizer
    from .tokenizer_pair import TokenizerPair

_HOME = {
    "BEGIN": "batch",
    "Batch": "batch",
    "Batches": "batches",
    "END": "batch",
    "EncodedCorpus": "encoded_corpus",
    "LabelSet": "label_set",
    "PAD": "batch",
    "Pair": "pair",
    "PairReader": "pair_reader",
    "Tokenizer": "tokenizer",
    "TokenizerPair": "tokenizer_pair",
    "UNKNOWN": "batch",
}

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


def __getattr__(name: str) -> object:
    # Reading pairs needs neither torch nor numpy, and `regard phrasebook` should not wait for them.
    if name not in _HOME:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
