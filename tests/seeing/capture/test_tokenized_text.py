"""TokenizedText: its tokens, punctuation and errors."""

from __future__ import annotations

import pytest

from regard.seeing.analysis import TokenizedText


def test_a_text_of_ids() -> None:
    text = TokenizedText.from_ids([3, 4, 5], ["▁The", "▁end", "."])
    assert len(text) == 3
    assert text.punctuation.tolist() == [False, False, True]
    assert not text.delimiters.any()
    assert TokenizedText.from_ids([3, 4]).tokens == ["3", "4"]
    with pytest.raises(ValueError, match="2 token ids and 1 tokens"):
        TokenizedText.from_ids([3, 4], ["a"])
    with pytest.raises(ValueError, match=r"one list of token ids, got shape \[0\]"):
        TokenizedText.from_ids([])


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no token of the text '~'"):
        TokenizedText.encode(lambda text, **options: {"input_ids": []}, "~")
