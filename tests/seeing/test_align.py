"""The pointing game: hits are counted among the words that have a region."""

from __future__ import annotations

import pytest
import torch

from regard.data.corpora.scenes import Box
from regard.seeing.align import (
    alignment_error_rate,
    best_links,
    group_pieces,
    merge_pieces,
    parse_links,
    pointing_hits,
    sum_by_word,
    word_weights,
)
from regard.seeing.analysis import TokenizedText


def test_pointing_counts_words_that_are_somewhere() -> None:
    weights = torch.zeros(4, 6)  # 2 rows, 3 columns
    weights[0, 0] = weights[1, 5] = weights[2, 1] = weights[3, 4] = 1
    upper_left, lower_right = Box(0, 0, 0.3, 0.5), Box(0.7, 0.5, 1, 1)
    regions = [[upper_left], [upper_left, lower_right], [], [lower_right]]
    assert pointing_hits(weights, (2, 3), regions) == (2, 3)
    with pytest.raises(ValueError, match=r"weights are \[4, 6\], there are 4 words and 2 × 2 cells"):
        pointing_hits(weights, (2, 2), regions)


def test_the_error_rate_of_links_from_attention() -> None:
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])
    links = best_links(weights)
    assert links == {(0, 0), (2, 1), (0, 2)}
    # Two sure links of which one is found, one more found is possible: 1 − (1 + 2)/(3 + 2).
    assert alignment_error_rate([links], [{(0, 0), (1, 2)}], [{(2, 1)}]) == pytest.approx(1 - 3 / 5)


def test_error_rates_by_hand() -> None:
    sure, possible = {(0, 0), (1, 1)}, {(2, 1)}
    predicted = {(0, 0), (2, 1), (3, 3)}
    # |A∩S| = 1, |A∩P| = 2 (P holds S), |A| + |S| = 5.
    assert alignment_error_rate([predicted], [sure], [possible]) == pytest.approx(1 - 3 / 5)
    assert alignment_error_rate([sure], [sure], [set()]) == 0
    # Over a corpus the counts add up; the mean of the rates would be another number.
    assert alignment_error_rate([predicted, sure], [sure, sure], [possible, set()]) == pytest.approx(1 - 7 / 9)
    with pytest.raises(ValueError, match="no sentence has a link"):
        alignment_error_rate([set()], [set()], [set()])


def test_links_are_read() -> None:
    assert parse_links("0-0 12-3") == {(0, 0), (12, 3)}
    assert parse_links(None) == parse_links("") == set()
    with pytest.raises(ValueError, match="'1:2' is not an alignment link"):
        parse_links("0-0 1:2")


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
