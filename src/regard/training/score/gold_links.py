"""Gold links of a pair, checked against the words that a model's tokenizers make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...data.batch import UNKNOWN
from ...noun_count import count_of
from ...seeing.alignment.word_alignment import parse_links
from ...seeing.alignment.word_level_weights import join_pieces

if TYPE_CHECKING:
    from ...data import Pair, TokenizerPair
    from ...data.tokenizer import Tokenizer
    from ...seeing.alignment.word_alignment import Links


def text_words(tokenizer: Tokenizer, text: str) -> tuple[list[str], list[str]]:
    """The words of a text as the tokenizer splits them, and those it does not know."""
    ids = tokenizer.encode(text)
    numbers = tokenizer.words(ids)
    words = join_pieces(numbers, tokenizer.pieces(ids)) if ids else []
    spaced = text.split()
    unknown = sorted({number for number, id in zip(numbers, ids, strict=True) if id == UNKNOWN})
    if len(spaced) == len(words):  # an unknown word is shown as it was written
        words = [spaced[n] if n in unknown else word for n, word in enumerate(words)]
    return words, [words[n] for n in unknown]


def gold_links(pair: Pair, tokenizers: TokenizerPair) -> tuple[Links | None, Links]:
    """The sure links of a pair, None if it has none, and the possible ones.

    Links count the words between spaces. A tokenizer that splits punctuation may count others, so both counts must
    agree: otherwise a link would be read against another word than the one it was written for.
    """
    sure = None if pair.alignment is None else parse_links(pair.alignment)
    possible = parse_links(pair.possible)
    if sure is None and not possible:
        return sure, possible
    sizes = []
    for name, tokenizer, text in (
        ("source", tokenizers.source, pair.source),
        ("target", tokenizers.target, pair.target),
    ):
        words, spaced = text_words(tokenizer, text)[0], text.split()
        if len(words) != len(spaced):
            numbered = " ".join(f"{number}:{word}" for number, word in enumerate(words))
            raise ValueError(
                f"{pair.where or 'the pair'} has gold links, and its {name} has {count_of(len(spaced), 'word')} "
                f"between spaces but {count_of(len(words), 'word')} of the model: {numbered} – write the {name} with "
                "these words separated by spaces, and number the links by them"
            )
        sizes.append(len(words))
    for i, j in sorted((sure or set()) | possible):
        if i >= sizes[0] or j >= sizes[1]:
            raise ValueError(
                f"link {i}-{j} is outside {pair.where or 'the pair'}, which has {count_of(sizes[0], 'word')} and "
                f"{count_of(sizes[1], 'word')}: {pair.source} / {pair.target}"
            )
    return sure, possible
