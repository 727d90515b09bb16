"""Alignment links and their error rate."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.alignment.word_alignment import alignment_error_rate, best_links, parse_links


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
