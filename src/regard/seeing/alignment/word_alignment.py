"""Where a translator looked, word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from . import alignment_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float
    from torch import Tensor


class _Tokenizer(Protocol):
    def words(self, ids: Sequence[int]) -> list[int]: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class _Tokenizers(Protocol):
    @property
    def source(self) -> _Tokenizer: ...
    @property
    def target(self) -> _Tokenizer: ...


class Translation(Protocol):
    """What `regard.decoding.translate(…, weights=True)` gives."""

    @property
    def tokenizers(self) -> _Tokenizers: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def source_tokens(self) -> list[int]: ...
    @property
    def weights(self) -> Float[Tensor, "maps target places"] | None: ...


def looked(translation: Translation) -> tuple[Float[Tensor, "target source"], list[str], list[str]]:
    """Weights between the words of a translation and those of its source, </s> among them, and both sides' words.

    The mean over all maps where a model has several.
    """
    if translation.weights is None:
        raise ValueError("this model has no attention, so there is nothing to show")
    sides = translation.tokenizers.target, translation.tokenizers.source
    places, labels = [], []
    for tokenizer, tokens in zip(sides, (translation.tokens, translation.source_tokens), strict=True):
        words = tokenizer.words(tokens[:-1])
        words.append(words[-1] + 1 if words else 0)  # </s> is a word of its own
        texts = [""] * (words[-1] + 1)
        for word, piece in zip(words, tokenizer.pieces(tokens), strict=True):
            texts[word] += piece.replace("▁", "")
        places.append(words)
        labels.append(texts)
    return alignment_error.words(translation.weights.mean(0), *places), labels[0], labels[1]
