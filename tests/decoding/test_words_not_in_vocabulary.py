"""The words of a text that a model does not know."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data import END, Tokenizer
from regard.decoding.classification import Classification
from regard.decoding.words_not_in_vocabulary import TextWords


@pytest.mark.parametrize(
    ("text", "marked", "warning"),
    [
        ("the film was dull", "the film was dull", ""),
        ("the zebra was dull", "the ⟨zebra⟩ was dull", "the model does not know what stands in ⟨⟩"),
        ("the film was dull.", "the film was ⟨dull.⟩", "it knows 'dull', so put a space"),
        ("zebra zebra", "⟨zebra⟩ ⟨zebra⟩", "the model knows no word of this"),
    ],
)
def test_unknown_words_are_marked(text: str, marked: str, warning: str) -> None:
    tokenizer = Tokenizer.train("word", 20, ["the film was dull", "the film was good"])
    ids = np.array([*tokenizer.encode(text), END])
    words = TextWords.of(Classification(text, ids), tokenizer)
    assert words.marked() == marked.split()
    assert warning in words.warning()
    assert bool(warning) == bool(words.warning())
