"""Adds the pieces of a new corpus to a vocabulary; every piece that it has keeps its id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...data.label_set import LabelSet
from ...data.tokenizer import Tokenizer, tokenizer_trainer
from ...noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def extended_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer with the pieces of `tokenizer`, then those that the same method learns from `texts`, up to `size`.

    The merges of BPE are appended too, so they apply after the old ones: a text that was cut into pieces before is cut
    into the same ones or into longer ones.
    """
    from tokenizers import Tokenizer as Backend

    if tokenizer.unknown_words is not None:
        raise ValueError(
            'training.init_vocabulary = "extend" adds pieces at the end of the vocabulary, where this model has its '
            'ids of unknown words (tokenizer.slots): use "keep"'
        )
    if tokenizer.has_tags:
        raise ValueError(
            'training.init_vocabulary = "extend" adds pieces at the end of the vocabulary, where this model has its '
            'tags (data.tags): use "keep"'
        )
    old: dict[str, Any] = json.loads(tokenizer.to_json())
    kind = old["model"]["type"]
    backend: Any = Backend.from_str(tokenizer.to_json())
    backend.train_from_iterator(texts, tokenizer_trainer(kind, size))
    new = json.loads(backend.to_str())["model"]
    pieces = old["model"]["vocab"]  # Unigram: a list of [piece, score]; else piece → id
    known = {piece for piece, _ in pieces} if kind == "Unigram" else set(pieces)
    learned = new["vocab"] if kind == "Unigram" else sorted(new["vocab"].items(), key=lambda item: item[1])
    added = [(piece, value) for piece, value in learned if piece not in known]
    room = size - len(known)
    if added and room <= 0:
        raise ValueError(
            f"the vocabulary has {count_of(len(known), 'piece')}, and tokenizer.size = {size:,} leaves no room for the "
            f"{len(added):,} that the new corpus needs; raise tokenizer.size"
        )
    added = added[:room]
    if kind == "Unigram":
        pieces.extend(list(item) for item in added)
    else:
        pieces.update({piece: len(known) + n for n, (piece, _) in enumerate(added)})
    if kind == "BPE":
        merges = [tuple(pair) for pair in old["model"]["merges"]]
        there = set(merges)
        for first, second in new["merges"]:
            if (first, second) not in there and {first, second, first + second} <= pieces.keys():
                merges.append((first, second))
        old["model"]["merges"] = [list(pair) for pair in merges]
    return Tokenizer(Backend.from_str(json.dumps(old)))


def extended_labels(labels: LabelSet, texts: Iterable[str]) -> LabelSet:
    """The labels, then those that `texts` has and they have not."""
    new = set(texts) - set(labels.names)
    return LabelSet([*labels.names, *LabelSet.sorted_names(new)])
