"""Weights between words, from weights between the tokens (word pieces) of a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from ..capture.tokenized_text import WORD_START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor

    from ..capture.tokenized_text import TokenizedText


class _WordTokenizer(Protocol):
    def words(self, ids: Sequence[int]) -> list[int]: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class _SourceTargetTokenizers(Protocol):
    @property
    def source(self) -> _WordTokenizer: ...
    @property
    def target(self) -> _WordTokenizer: ...


class DecodedWeights(Protocol):
    """A translation or caption with its attention, as `regard.decoding.translate(…, weights=True)` returns it."""

    @property
    def tokenizers(self) -> _SourceTargetTokenizers: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def source_tokens(self) -> list[int]: ...
    @property
    def pieces(self) -> list[str]: ...
    @property
    def source_pieces(self) -> list[str]: ...
    @property
    def generation(self) -> Float[Tensor, "target"] | None: ...
    @property
    def weights(self) -> Float[Tensor, "maps target places"] | None: ...


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
    translation: DecodedWeights,
) -> tuple[Float[Tensor, "target source"], list[str], list[str]]:
    """Weights between target and source words, </s> included, and the words of both sides; the mean over all maps.

    Of a decoder that copies, the last column is 1 − p_gen: the share of each word that is copied.
    """
    weights, tokenizers = _mean_weights(translation), translation.tokenizers
    target, target_words = _words_with_end(tokenizers.target, translation.tokens, translation.pieces)
    source, source_words = _words_with_end(tokenizers.source, translation.source_tokens, translation.source_pieces)
    if translation.generation is not None:
        weights = torch.cat([weights, 1 - translation.generation[:, None]], 1)
        source, source_words = [*source, source[-1] + 1], [*source_words, "(copied)"]
    return merge_pieces(weights, target, source), target_words, source_words


def caption_word_weights(caption: DecodedWeights) -> tuple[Float[Tensor, "words rows columns"], list[str]]:
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


def _mean_weights(decoded: DecodedWeights) -> Float[Tensor, "target places"]:
    if decoded.weights is None:
        raise ValueError("this model has no attention, so there is nothing to show")
    return decoded.weights.mean(0)


def _words_with_end(tokenizer: _WordTokenizer, tokens: list[int], pieces: list[str]) -> tuple[list[int], list[str]]:
    words = tokenizer.words(tokens[:-1])
    words.append(words[-1] + 1 if words else 0)  # </s> is a word of its own
    return words, join_pieces(words, pieces)


def join_pieces(words: Sequence[int], pieces: Sequence[str]) -> list[str]:
    """The text of each word; `words` gives the word of each piece."""
    texts = [""] * (words[-1] + 1)
    for word, piece in zip(words, pieces, strict=True):
        texts[word] += piece.replace("▁", "")
    return texts
