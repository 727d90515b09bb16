"""Multi-head attention against PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard import Additive, Alibi, Modified, ScaledDot, attend, causal, padding
from regard.layers import MultiHead
from tests.support.gradients import F64, leaf


@pytest.mark.parametrize("cross", [False, True])
def test_multihead_is_pytorchs(cross: bool) -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, kdim=8 if cross else 12, vdim=8 if cross else 12).double()
    ours = MultiHead(12, 3, memory=8 if cross else None).double()
    with torch.no_grad():
        if cross:
            q, k, v = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
        else:
            q, k, v = theirs.in_proj_weight.chunk(3)
        for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
            bias.normal_()
        ours.query.weight.copy_(q)
        ours.key_value.weight.copy_(torch.cat([k, v]))
        ours.query.bias.copy_(theirs.in_proj_bias[:12])
        ours.key_value.bias.copy_(theirs.in_proj_bias[12:])
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    x, memory, lengths = leaf(2, 5, 12), leaf(2, 7, 8), torch.tensor([7, 4] if cross else [5, 3])
    other = memory if cross else x
    closed = torch.arange(other.shape[1]) >= lengths[:, None]
    want, w = theirs(x, other, other, key_padding_mask=closed, average_attn_weights=False)
    got, seen = ours(x, memory if cross else None, mask=padding(lengths), weights=True)
    torch.testing.assert_close(got, want)
    assert seen is not None
    torch.testing.assert_close(seen.dense(), w)


def test_multihead_takes_any_energy_and_fewer_key_heads() -> None:
    layer = MultiHead(12, 4, key_heads=2, energy=Additive(3, 3, 5)).double()
    x = leaf(2, 6, 12)
    got, _ = layer(x, mask=causal())
    q = layer.query(x).unflatten(-1, (4, 3)).transpose(1, 2)
    k, v = layer.keys(x)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    e = (
        torch.tanh((q @ layer.energy.query.weight.mT)[:, :, :, None] + (k @ layer.energy.key.weight.mT)[:, :, None])
        @ layer.energy.weight
    )
    e = e.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(got, layer.output((e.softmax(-1) @ v).transpose(1, 2).flatten(-2)))
    assert {n for n, _ in layer.named_parameters()} >= {"energy.weight", "energy.query.weight"}


def test_multihead_drops_weights_while_training_and_only_then() -> None:
    torch.manual_seed(0)
    layer = MultiHead(12, 4, dropout=0.25).double()
    layer.output = nn.Identity()
    x = torch.randn(1, 6, 12, dtype=F64)
    k, v = layer.keys(x)
    q = layer.query(x).unflatten(-1, (4, 3)).transpose(1, 2)
    drawn = torch.stack([layer(x)[0] for _ in range(4000)])
    _, seen = layer(x, weights=True)
    assert seen is not None
    # z = Σ_j w_j v_j b_j / 0.75 with b_j of chance 0.75: its mean is z, its variance Σ_j (w_j v_j)² · 0.25 / 0.75.
    variance = (seen.dense().square() @ v.square() / 3).transpose(1, 2).flatten(-2)
    error = (drawn.mean(0) - layer.eval()(x)[0]).abs() / (variance / 4000).sqrt()
    assert 0 < error.max() < 5
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.25, atol=0)
    torch.testing.assert_close(layer(x)[0], attend(q, k, v).transpose(1, 2).flatten(-2))


@pytest.mark.parametrize(("heads", "key_heads"), [(5, 5), (4, 3), (4, 0)])
def test_multihead_refuses_heads_that_do_not_divide(heads: int, key_heads: int) -> None:
    with pytest.raises(ValueError, match="heads"):
        MultiHead(12, heads, key_heads=key_heads)


def test_alibi_stands_in_multihead() -> None:
    layer = MultiHead(8, 2, energy=Modified(ScaledDot(), Alibi(2)))
    far, near = layer(torch.randn(1, 50, 8), weights=True)[1].dense()[0, 0, 25, [0, 24]]  # type: ignore[union-attr]
    assert near > far
