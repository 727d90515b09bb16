"""Packed batches with cumulative lengths against `attend` of each sequence alone."""

import pytest
import torch

import regard as r
from regard import attend, attend_packed

CU_Q, CU_K = torch.tensor([0, 3, 4, 9], dtype=torch.int32), torch.tensor([0, 4, 10, 12], dtype=torch.int32)


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("mask", [None, r.causal("bottom-right")])
def test_each_sequence_alone(heads: tuple[int, ...], mask) -> None:
    q, k, v = (torch.randn(n, *heads, 4, dtype=torch.float64) for n in (9, 12, 12))
    z, w = attend_packed(q, k, v, CU_Q, CU_K, mask=mask, weights=True)
    torch.testing.assert_close(attend_packed(q, k, v, CU_Q, CU_K, mask=mask), z)
    for b in range(3):
        one = [x[at[b] : at[b + 1]] for x, at in ((q, CU_Q), (k, CU_K), (v, CU_K))]
        one = [x.transpose(0, 1) for x in one] if heads else one
        want, alone = attend(*one, mask=mask, weights=True)
        got = z[CU_Q[b] : CU_Q[b + 1]]
        torch.testing.assert_close(got.transpose(0, 1) if heads else got, want)
        mine = w[b].dense()[..., : want.shape[-2], : one[1].shape[-2]]
        torch.testing.assert_close(mine, alone.dense())


def test_one_list_of_lengths_serves_both_sides() -> None:
    x = torch.randn(9, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(attend_packed(x, x, x, CU_Q), attend_packed(x, x, x, CU_Q, CU_Q.clone()))


def test_it_is_documents_of_one_long_sequence() -> None:
    x = torch.randn(9, 2, 4, dtype=torch.float64)
    long = x.transpose(0, 1)
    want = attend(long, long, long, mask=r.documents([0, 0, 0, 1, 2, 2, 2, 2, 2]) & r.causal())
    torch.testing.assert_close(attend_packed(x, x, x, CU_Q, mask=r.causal()), want.transpose(0, 1))


@pytest.mark.parametrize(
    ("cu_seqlens", "words"),
    [([0, 3, 8], "to the number of rows, 9"), ([1, 9], "from 0"), ([0, 5, 3, 9], "never down"), ([0.0, 9.0], "whole")],
)
def test_cumulative_lengths_that_are_none(cu_seqlens: list[int], words: str) -> None:
    x = torch.randn(9, 2, 4)
    with pytest.raises(ValueError, match=words):
        attend_packed(x, x, x, torch.tensor(cu_seqlens))


def test_rows_that_do_not_belong_together() -> None:
    x = torch.randn(9, 2, 4)
    with pytest.raises(ValueError, match="every key needs a value"):
        attend_packed(x, x, x[:8], CU_Q)
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        attend_packed(x, x[:8], x[:8], CU_Q)


def test_a_shape_that_is_not_packed() -> None:
    x = torch.randn(9, 2, 4, 4)
    with pytest.raises(ValueError, match="total, heads, D"):
        attend_packed(x, x, x, CU_Q)
