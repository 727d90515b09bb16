"""Weights between word pieces become weights between words."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.alignment.word_alignment import best_links
from regard.seeing.alignment.word_level_weights import group_pieces, merge_pieces, sum_by_word, word_weights
from regard.seeing.analysis import TokenizedText


def test_tokens_of_a_text_become_words() -> None:
    text = TokenizedText(
        torch.arange(5), ["[CLS]", "un", "##seen", "heads", "[SEP]"], torch.zeros(5).bool(), torch.zeros(5).bool(),
        words=[None, 0, 0, 1, None],
    )  # fmt: skip
    assert group_pieces(text) == ([0, 1, 1, 2, 3], ["[CLS]", "unseen", "heads", "[SEP]"])
    w = torch.rand(5, 5).softmax(-1)
    words, names = word_weights(w, text)
    assert names[1] == "unseen"
    assert torch.allclose(words.sum(-1), torch.ones(4))
    assert torch.allclose(words[1, 1], (w[1, 1] + w[1, 2] + w[2, 1] + w[2, 2]) / 2)
    with pytest.raises(ValueError, match="words of this text are not known"):
        group_pieces(TokenizedText.from_ids([1, 2]))


def test_weights_to_pieces_are_summed_and_from_them_averaged() -> None:
    weights = torch.tensor(
        [
            [0.1, 0.2, 0.3, 0.4],  # the first target word has two pieces
            [0.3, 0.0, 0.1, 0.6],
            [0.5, 0.2, 0.2, 0.1],
            [0.0, 0.0, 0.0, 1.0],  # </s>
        ]
    )
    # Source pieces 0 and 1 are one word; the last place is </s>, which is left out.
    whole = merge_pieces(weights, [0, 0, 1], [0, 0, 1])
    torch.testing.assert_close(whole, torch.tensor([[0.3, 0.2], [0.7, 0.2]]))
    torch.testing.assert_close(merge_pieces(weights.expand(2, 3, 4, 4), [0, 0, 1], [0, 0, 1])[1, 2], whole)
    assert best_links(whole) == {(0, 0), (0, 1)}
    assert best_links(torch.zeros(1, 2)) == set()


def test_the_weight_of_a_word_is_the_sum_over_its_tokens() -> None:
    assert sum_by_word(torch.tensor([0.1, 0.2, 0.7]), [0, 0, 1]).tolist() == pytest.approx([0.3, 0.7])
