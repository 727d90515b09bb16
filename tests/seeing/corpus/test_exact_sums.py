"""Sums that do not depend on the order of their terms."""

from __future__ import annotations

import math

import pytest
import torch

from regard.seeing.corpus.exact_sums import ExactSums

NAME = ("score", "layer", "next")


def _sums(terms: torch.Tensor) -> ExactSums:
    sums = ExactSums()
    for term in terms:
        sums.add(NAME, term)
    return sums


def test_any_order_and_any_division_give_the_same_bits() -> None:
    terms = torch.randn(300, 7, dtype=torch.float64) * 10.0 ** torch.randint(-9, 6, (300, 1))
    whole = _sums(terms)
    for _ in range(5):
        order, cut = torch.randperm(300), int(torch.randint(300, ()))
        first, second = _sums(terms[order[:cut]]), _sums(terms[order[cut:]])
        second.merge(first)
        assert torch.equal(second.sum(NAME), whole.sum(NAME))
        assert second.count(NAME) == 300
    # Float64 addition itself does depend on the order.
    assert not torch.equal(terms.cumsum(0)[-1], terms.flip(0).cumsum(0)[-1])


def test_the_sum_is_the_true_one() -> None:
    terms = torch.randn(1000, 3, dtype=torch.float64)
    exact = torch.tensor([math.fsum(column) for column in terms.T.tolist()], dtype=torch.float64)
    torch.testing.assert_close(_sums(terms).sum(NAME), exact, rtol=0, atol=1000 * 2.0**-60 + 1e-13)
    torch.testing.assert_close(_sums(terms).mean(NAME), exact / 1000, rtol=0, atol=1e-15)


def test_a_state_brings_all_back() -> None:
    sums = _sums(torch.randn(9, 4))
    sums.add(("draw", "a"), torch.ones(2, 3))
    back = ExactSums.from_state(sums.state())
    assert sorted(back.names) == sorted(sums.names)
    assert torch.equal(back.sum(NAME), sums.sum(NAME))
    assert back.count(NAME) == 9


def test_a_missing_value_stays_missing_and_leaves_the_others() -> None:
    terms = torch.tensor([[1.0, 2.0, 3.0], [1.0, math.nan, math.inf]])
    total = _sums(terms).sum(NAME)
    assert total[0] == 2
    assert total[1:].isnan().all()


def test_what_cannot_be_summed_is_refused() -> None:
    sums = _sums(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"shape \(4,\), and \(3,\) before"):
        sums.add(NAME, torch.ones(4))
    with pytest.raises(OverflowError, match="too large"):
        sums.add(NAME, torch.full((3,), 1e30))
