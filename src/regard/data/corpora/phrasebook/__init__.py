"""A grammar that generates English–French and English–Spanish sentence pairs with gold alignments."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Literal, get_args

from ...rows import Pair
from .bilingual_phrase import Language, rendered
from .grammar import sentence, with_invented_words
from .lecture_grammar import LectureGrammar
from .lecture_grammar import lecture_sentences as shown_sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["TAGS", "Language", "PhrasebookPairs", "examples", "pairs"]

Split = Literal["train", "test"]
Languages = Literal["french", "spanish", "both"]
TAGS = ("<2fr>", "<2es>")  # before an English sentence: the language to translate it into (Johnson et al. 2017)

LONGEST = 40  # words


@dataclass(frozen=True)
class PhrasebookPairs:
    """n different pairs; the same seed gives the same ones, and no sentence of `train` is in `test`."""

    n: int
    seed: int
    split: Split
    language: Languages = "french"
    lectures: bool = False
    invented: bool = False

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Pair]:
        row, known = 0, set()
        for columns in self._sentences():
            source, target, _, _ = columns[0]
            # By the target: an English sentence has one translation here, so neither side is in both splits. Pairs in
            # two languages belong to the split of their English side.
            tested = zlib.crc32((target if len(columns) == 1 else source).encode()) % 10 == 0
            if tested != (self.split == "test") or source in known or source.count(" ") >= LONGEST:
                continue
            known.add(source)
            for tag, pair in zip(TAGS, columns, strict=False):
                if row < self.n:
                    pair = pair if len(columns) == 1 else _tagged(tag, pair)
                    yield Pair(pair[0], pair[1], row, f"phrasebook:{row + 1}", pair[2], pair[3])
                row += 1
            if row >= self.n:
                return

    def _sentences(self) -> Iterator[list[tuple[str, str, str, str]]]:
        """Random sentences without end: English, target, sure and possible links; of "both", in French and Spanish."""
        plain = self.language == "french" and not self.lectures
        r = Random(f"{self.seed} {self.split}" + ("" if plain else f" {self.language} {self.lectures}"))
        while self.n:
            if self.invented:
                if (phrase := with_invented_words(sentence(r), r)) is not None:
                    yield [rendered(phrase)]
            elif plain:
                yield [rendered(sentence(r))]
            elif self.language == "both":
                seed = r.random()  # the same choices in both languages
                yield [rendered(LectureGrammar(Random(seed), each).sentence(), each) for each in get_args(Language)]
            else:
                yield [rendered(LectureGrammar(r, self.language).sentence(), self.language)]


def _tagged(tag: str, pair: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    """The English sentence behind a tag that names the target language; links are moved by that word."""
    source, target, *links = pair
    moved = [" ".join(f"{int(i) + 1}-{j}" for i, j in (link.split("-") for link in side.split())) for side in links]
    return f"{tag} {source}", target, moved[0], moved[1]


def pairs(
    n: int,
    seed: int = 0,
    split: Split = "train",
    *,
    language: Languages = "french",
    lectures: bool = False,
    invented: bool = False,
) -> PhrasebookPairs:
    """n different pairs of the phrase book, tokenised, in lower case, with gold alignments.

    `lectures`: sentences like those that lectures on attention show; Spanish has only these. "both" gives each of them
    in French and in Spanish, after the tags <2fr> and <2es>. `invented`: names and numbers that hardly come twice, the
    same in both languages, at least one in each sentence.
    """
    if invented and (lectures or language != "french"):
        raise ValueError("invented names and numbers are for French, and not for the sentences of the lectures")
    if n < 0:
        raise ValueError(f"the phrase book gives 0 or more pairs, not {n}")
    if split not in get_args(Split):
        raise ValueError(f"split is 'train' or 'test', got {split!r}")
    if language not in get_args(Languages):
        raise ValueError(f"language is 'french', 'spanish' or 'both', got {language!r}")
    return PhrasebookPairs(n, seed, split, language, lectures, invented)


def examples(language: Language = "french") -> list[Pair]:
    """The sentences that the lectures themselves show."""
    return [
        Pair(source, target, row, f"lectures:{row + 1}", sure, possible)
        for row, (source, target, sure, possible) in enumerate(shown_sentences(language))
    ]
