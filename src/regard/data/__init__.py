"""Text, pictures and sound in, batches out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch import BEGIN, END, PAD, UNKNOWN, Batch
    from .batches import Batches
    from .encoded_corpus import Encoded
    from .label_set import Labels
    from .pair import Pair
    from .pair_reader import Pairs
    from .tokenizer import Tokenizer
    from .tokenizer_pair import Tokenizers

_HOME = {
    "BEGIN": "batch",
    "Batch": "batch",
    "Batches": "batches",
    "END": "batch",
    "Encoded": "encoded_corpus",
    "Labels": "label_set",
    "PAD": "batch",
    "Pair": "pair",
    "Pairs": "pair_reader",
    "Tokenizer": "tokenizer",
    "Tokenizers": "tokenizer_pair",
    "UNKNOWN": "batch",
}

__all__ = [
    "BEGIN",
    "END",
    "PAD",
    "UNKNOWN",
    "Batch",
    "Batches",
    "Encoded",
    "Labels",
    "Pair",
    "Pairs",
    "Tokenizer",
    "Tokenizers",
]


def __getattr__(name: str) -> object:
    # Reading pairs needs neither torch nor numpy, and `regard phrasebook` should not wait for them.
    if name not in _HOME:
        raise AttributeError(f"module 'regard.data' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
