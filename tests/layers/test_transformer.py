"""Multi-head attention against PyTorch's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from regard import Additive, Alibi, Modified, ScaledDot, attend, causal, padding
from regard.layers import DecoderLayer, EncoderLayer, MultiHead
from regard.layers.transformer import Residual
from regard.models import EncoderDecoder, EncoderDecoderConfig, NoEncoderConfig, TransformerDecoderConfig
from regard.models.encoders import TransformerEncoderConfig
from tests.support.gradients import F64, leaf

if TYPE_CHECKING:
    from torch import Tensor


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


def _double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize(
    ("norm", "adds", "expected"), [("none", True, [3.0, 9.0]), ("none", False, [2.0, 6.0]), ("post", True, [-1.0, 1.0])]
)
def test_a_residual_without_its_norm_or_its_sum(norm: Any, adds: bool, expected: list[float]) -> None:
    out = Residual(2, norm, 0.0, adds=adds)(torch.tensor([1.0, 3.0]), _double)
    assert torch.allclose(out, torch.tensor(expected), atol=1e-4)


def test_a_layer_that_is_not_scaled_computes_softmax_of_the_dot_products() -> None:
    torch.manual_seed(0)
    layer = EncoderLayer(8, 2, 16, scaled=False, dropout=0.0).attention.double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    k, v = layer.keys(x)
    q = layer.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
    z = torch.softmax(q @ k.mT, -1) @ v
    assert torch.allclose(layer(x)[0], layer.output(z.transpose(1, 2).flatten(-2)))


def test_without_positions_an_encoder_reads_a_set() -> None:
    torch.manual_seed(0)
    order = torch.tensor([3, 1, 4, 0, 2])
    source, lengths = torch.tensor([[7, 5, 9, 6, 8]]), torch.tensor([5])
    with torch.no_grad():
        for positions, equal in (("none", True), ("sinusoidal", False), ("alibi", False)):
            config = TransformerEncoderConfig(width=8, heads=2, hidden=16, layers=2, positions=positions)  # type: ignore[arg-type]
            encoder = config.build(10, 16).eval()
            there = encoder(source[:, order], lengths).vectors
            assert torch.allclose(there, encoder(source, lengths).vectors[:, order], atol=1e-5) == equal


def test_only_a_layer_without_its_mask_sees_later_tokens() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 6, 8)
    later = x.clone()
    later[:, 4] += 1
    none = x.new_zeros(1, 0, 1)
    for masked in (True, False):
        layer = DecoderLayer(8, 2, 16, masked=masked, dropout=0.0)
        same = torch.equal(layer(x, none, None)[0][:, :4], layer(later, none, None)[0][:, :4])
        assert same == masked


def test_a_translator_keeps_its_mask() -> None:
    """Its targets are padded, and the mask is what hides the padding."""
    parts: dict[str, Any] = {"source_vocabulary": 9, "target_vocabulary": 9}
    small: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 8, "layers": 1}
    decoder = TransformerDecoderConfig(**small, masked=False)
    with pytest.raises(ValueError, match=r"decoder\.masked = false is for language models"):
        EncoderDecoderConfig(encoder=TransformerEncoderConfig(**small), decoder=decoder, **parts).check()
    EncoderDecoderConfig(encoder=NoEncoderConfig(), decoder=decoder, **parts | {"source_vocabulary": 0}).check()


@pytest.mark.parametrize("switch", [{"norm": "none"}, {"residual": False}, {"scaled": False}, {"positions": "none"}])
def test_token_by_token_a_broken_decoder_computes_the_same(switch: dict[str, Any]) -> None:
    """The cache of `step` and the whole sequence of `forward` agree in every variant; with ALiBi, unscaled too."""
    torch.manual_seed(0)
    options = {"positions": "alibi", **switch}
    decoder = TransformerDecoderConfig(width=8, heads=2, hidden=16, layers=2, **options)  # type: ignore[arg-type]
    config = EncoderDecoderConfig(source_vocabulary=0, target_vocabulary=9, encoder=NoEncoderConfig(), decoder=decoder)
    model, tokens = EncoderDecoder(config).eval().double(), torch.tensor([[1, 5, 6, 7, 8]])
    with torch.no_grad():
        nothing = model.encode(tokens.new_ones(1, 1), tokens.new_ones(1))
        whole = model.decoder(tokens, nothing).features[0]
        state = model.decoder.start(nothing, steps=5)
        for at in range(5):
            features, state, _ = model.decoder.step(tokens[:, at], state)
            assert torch.allclose(features[0], whole[at])
