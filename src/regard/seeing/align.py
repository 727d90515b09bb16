"""Alignment: links between words and their error rate, weights between words, and the pointing game."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from .text_models import WORD_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float
    from torch import Tensor

    from .text_models import TokenizedText

Links = set[tuple[int, int]]  # (word of the source, word of the target), both from 0


def parse_links(text: str | None) -> Links:
    """Links written "0-0 1-2"."""
    links = set()
    for link in (text or "").split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise ValueError(f"{link!r} is not an alignment link; links look like 0-0 1-2")
        links.add((int(source), int(target)))
    return links


def best_links(weights: Float[Tensor, "target source"]) -> Links:
    """Link each target word to the source word of largest weight. A row of zeros gets no link."""
    largest, where = weights.max(-1)
    return {(source, target) for target, source in enumerate(where.tolist()) if largest[target] > 0}


def alignment_error_rate(predicted: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links]) -> float:
    """The alignment error rate of a corpus (Och & Ney 2003), P ⊇ S:

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
    """
    hits = total = 0
    for a, s, p in zip(predicted, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        total += len(a) + len(s)
    if not total:
        raise ValueError("no sentence has a link, predicted or sure, so there is no error rate")
    return 1 - hits / total


def merge_pieces(
    weights: Float[Tensor, "*maps target source"], target: Sequence[int], source: Sequence[int]
) -> Float[Tensor, "*maps target_words source_words"]:
    """Weights between words from weights between pieces; `target[t]` is the word of piece t, `source` likewise.

    Weights *to* the pieces of a word are summed, weights *from* them averaged (Clark et al. 2019), so the sums of rows
    are kept. Pieces beyond `target` and `source` (</s>) are left out.
    """
    rows, columns = torch.tensor(target), torch.tensor(source)
    summed = torch.zeros(*weights.shape[:-2], len(target), int(columns.max()) + 1, dtype=weights.dtype)
    summed.index_add_(-1, columns, weights[..., : len(target), : len(source)])
    merged = torch.zeros(*weights.shape[:-2], int(rows.max()) + 1, summed.shape[-1], dtype=weights.dtype)
    merged.index_add_(-2, rows, summed)
    return merged / torch.bincount(rows).clamp(min=1)[:, None]


def sum_by_word(weights: Float[Tensor, "tokens"], words: Sequence[int]) -> Float[Tensor, "words"]:
    """The weight of each word is the sum over its tokens; `words` gives the word of each token."""
    return torch.zeros(max(words) + 1).index_add_(0, torch.tensor(words), weights.float())


def group_pieces(text: TokenizedText) -> tuple[list[int], list[str]]:
    """The index of each token's word, and the words. A special token is a word of its own."""
    if text.words is None:
        raise ValueError("the words of this text are not known: only a fast tokenizer says which word a token is from")
    indices: list[int] = []
    names: list[str] = []
    previous: object = object()
    for piece, word in zip(text.tokens, text.words, strict=True):
        segment = None if text.segments is None else int(text.segments[len(indices)])
        if word is None or (segment, word) != previous:
            names.append(piece.strip(WORD_START))
        else:
            names[-1] += piece.removeprefix("##").strip(WORD_START)
        previous = (segment, word)
        indices.append(len(names) - 1)
    return indices, names


def word_weights(
    weights: Float[Tensor, "*maps q k"], text: TokenizedText
) -> tuple[Float[Tensor, "*maps words words"], list[str]]:
    """Weights between the words of a text, and the words; pieces are merged as in `merge_pieces`."""
    indices, names = group_pieces(text)
    return merge_pieces(weights, indices, indices), names


def translation_word_weights(
    translation: Any,
) -> tuple[Float[Tensor, "target source"], list[str], list[str]]:
    """Weights between the words of both sides of a translation, </s> included; the mean over all maps.

    Of a decoder that copies, the last column is 1 − p_gen: the share of each word that is copied.
    """
    weights, tokenizers = _mean_weights(translation), translation.tokenizers
    target, target_words = _words_with_end(tokenizers.target, translation.tokens, translation.pieces)
    source, source_words = _words_with_end(tokenizers.source, translation.source_tokens, translation.source_pieces)
    if translation.generation is not None:
        weights = torch.cat([weights, 1 - translation.generation[:, None]], 1)
        source, source_words = [*source, source[-1] + 1], [*source_words, "(copied)"]
    return merge_pieces(weights, target, source), target_words, source_words


def caption_word_weights(caption: Any) -> tuple[Float[Tensor, "words rows columns"], list[str]]:
    """Weights over the grid of image cells for each word of a caption, without </s>; the mean over all maps."""
    weights, tokens = _mean_weights(caption), caption.tokens[:-1]
    if not tokens:
        raise ValueError("this caption has no words, so there is nothing to show")
    cells = weights.shape[-1]
    side = round(cells**0.5)
    if side * side != cells:
        raise ValueError(f"these weights are over {cells} cells, which do not form a square grid")
    words = caption.tokenizers.target.words(tokens)
    maps = merge_pieces(weights, words, range(cells))
    return maps.unflatten(-1, (side, side)), join_pieces(words, caption.tokenizers.target.pieces(tokens))


def _mean_weights(decoded: Any) -> Float[Tensor, "target places"]:
    if decoded.weights is None:
        raise ValueError("this model has no attention, so there is nothing to show")
    weights: Tensor = decoded.weights
    return weights.mean(0)


def _words_with_end(tokenizer: Any, tokens: list[int], pieces: list[str]) -> tuple[list[int], list[str]]:
    words = tokenizer.words(tokens[:-1])
    words.append(words[-1] + 1 if words else 0)  # </s> is a word of its own
    return words, join_pieces(words, pieces)


def join_pieces(words: Sequence[int], pieces: Sequence[str]) -> list[str]:
    """The text of each word; `words` gives the word of each piece."""
    texts = [""] * (words[-1] + 1)
    for word, piece in zip(words, pieces, strict=True):
        texts[word] += piece.replace("▁", "")
    return texts


class Region(Protocol):
    """Part of an image; x and y are fractions of its width and height, from the upper left corner."""

    def holds(self, x: float, y: float) -> bool: ...


def pointing_hits(
    weights: Float[Tensor, "words cells"], grid: tuple[int, int], regions: Sequence[Sequence[Region]]
) -> tuple[int, int]:
    """The number of hits, and the number of words that have a region.

    Word t is a hit if the centre of its cell of largest weight (the first of equals) lies in one of its regions. Cells
    are those of a grid of (rows, columns), row by row. Words without a region are not counted.
    """
    rows, columns = grid
    if weights.shape != (len(regions), rows * columns):
        raise ValueError(
            f"the pointing game takes weights [words, cells], regions for each word and a grid of as many cells; "
            f"the weights are {list(weights.shape)}, there are {len(regions)} words and {rows} × {columns} cells"
        )
    hits = total = 0
    for cell, word_regions in zip(weights.argmax(-1).tolist(), regions, strict=True):
        if word_regions:
            row, column = divmod(cell, columns)
            hits += any(region.holds((column + 0.5) / columns, (row + 0.5) / rows) for region in word_regions)
            total += 1
    return hits, total
