"""BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): merges are left out at random while a model is trained."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from .batch import BEGIN, END, UNKNOWN
from .encoded_corpus import EncodedCorpus
from .encoding import MOST_CHARACTERS
from .tokenizer import SPACE, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int64

    from .tokenizer_pair import TokenizerPair

ROOM = 1.5  # how much longer a text may become; if it becomes longer, it stays as it was


class BpeDropout:
    """Cuts the words of encoded pairs into other pieces.

    At every step of the algorithm each merge that could be applied is left out with probability `rate`; the first of
    those that remain in the order of the vocabulary is applied, and a word is done when none remains. The numbers that
    a pair comes with decide its pieces, and nothing else: a resumed run, another process or another number of processes
    cuts it alike.

    `longest` is the maximum number of tokens of a side.
    """

    def __init__(self, tokenizers: TokenizerPair, rate: float, longest: int) -> None:
        if not 0 < rate < 1:
            raise ValueError(f"BPE-dropout leaves out a share of the merges between 0 and 1, got {rate}")
        self.longest = longest
        self._source = _Merges(tokenizers.source, rate) if isinstance(tokenizers.source, Tokenizer) else None
        self._target = _Merges(tokenizers.target, rate) if isinstance(tokenizers.target, Tokenizer) else None

    def room(self, widths: Int64[np.ndarray, "pairs"]) -> Int64[np.ndarray, "pairs"]:
        """How many tokens pairs of these widths may take."""
        room: Int64[np.ndarray, "pairs"] = np.maximum(
            widths, np.minimum((widths * ROOM).astype(np.int64), self.longest)
        )
        return room

    def segmented(
        self, encoded: EncodedCorpus, pairs: Sequence[int] | Int64[np.ndarray, "batch"], seeds: Sequence[Sequence[int]]
    ) -> EncodedCorpus:
        """A corpus of these pairs alone, cut anew; `seeds` has the numbers that decide how, for each."""
        room = self.room(encoded.widths[pairs])
        sources, targets = [], []
        for pair, most, seed in zip(pairs, room.tolist(), seeds, strict=True):
            source, target = encoded[int(pair)]
            random = Random(" ".join(map(str, seed)))
            if self._source is not None:
                ids = self._source.cut_again(source[:-1].tolist(), most - 1, random)
                source = np.array([*ids, END], np.int32)
            if self._target is not None:
                ids = self._target.cut_again(target[1:-1].tolist(), most - 1, random)
                target = np.array([BEGIN, *ids, END], np.int32)
            sources.append(source)
            targets.append(target)
        lengths = np.array([len(source) for source in sources], np.int64)
        arrays = {
            "source": np.concatenate([*sources, np.empty(0, encoded.source.dtype)]),
            "target": np.concatenate([*targets, np.empty(0, np.int32)]),
            "source_starts": lengths.cumsum() - lengths,
            "source_lengths": lengths,
            "target_lengths": np.array([len(target) for target in targets], np.int64),
            "rows": encoded.rows[pairs],
        }
        return EncodedCorpus(arrays, encoded.about)


class _Merges:
    """The merges of one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        model: dict[str, Any] = json.loads(tokenizer.to_json())["model"]
        if model["type"] != "BPE" or tokenizer.plugin or not tokenizer.encodes_words_alone:
            raise ValueError(f'tokenizer.dropout leaves out merges of "bpe"; the vocabulary is of type {model["type"]}')
        self.tokenizer, self.rate = tokenizer, rate
        self.pieces = {number: piece for piece, number in model["vocab"].items()}
        self.ids: dict[str, int] = model["vocab"]
        ids = self.ids
        self.merges = {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(model["merges"])
        }
        self._parts: dict[str, list[list[int]] | None] = {}  # of words that were cut before
        self._characters = 0  # of these words

    def _split(self, word: str) -> list[list[int]] | None:
        """The parts of a word that pieces do not cross, as characters; None where one has no id of its own."""
        if word not in self._parts:
            if self._characters > MOST_CHARACTERS:
                self._parts.clear()
                self._characters = 0
            self._characters += len(word)
            known = set(word) <= self.ids.keys()
            parts = self.tokenizer.split_word(word) if known else []
            self._parts[word] = [[self.ids[character] for character in part] for part in parts] if known else None
        return self._parts[word]

    def cut_again(self, ids: list[int], most: int, random: Random) -> list[int]:
        """Other pieces for the same text; the same where they would be more than `most`. Tags and <unk> stay."""
        cut: list[int] = []
        word: list[int] = []
        for number in [*ids, UNKNOWN]:
            piece = self.pieces.get(number, "") if number != UNKNOWN else ""
            if word and (not piece or piece.startswith(SPACE)):
                cut += self._cut_word(word, random)
                word = []
            if piece:
                word.append(number)
            else:
                cut.append(number)
        del cut[-1]
        return cut if len(cut) <= most else ids

    def _cut_word(self, ids: list[int], random: Random) -> list[int]:
        word = "".join(self.pieces[number] for number in ids)
        # Without a space before it, it is the rest of a word with an <unk>.
        parts = self._split(word) if word.startswith(SPACE) else None
        return ids if parts is None else [number for part in parts for number in self._merged(list(part), random)]

    def _merged(self, symbols: list[int], random: Random) -> list[int]:
        merges, rate, draw = self.merges, self.rate, random.random
        while len(symbols) > 1:
            best, place, merged = len(merges), -1, 0
            for i, pair in enumerate(pairwise(symbols)):
                merge = merges.get(pair)
                # A merge that would not be applied anyway need not be drawn.
                if merge is not None and merge[0] < best and draw() >= rate:
                    best, place, merged = merge[0], i, merge[1]
            if place < 0:
                break
            symbols[place : place + 2] = [merged]
        return symbols
