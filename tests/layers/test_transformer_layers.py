"""Layers without one of their parts: norms, residual connections, scaling, the mask, positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.layers import DecoderLayer, EncoderLayer
from regard.layers.transformer_layers import Residual
from regard.models import EncoderDecoder, EncoderDecoderConfig, NoEncoderConfig, TransformerDecoderConfig
from regard.models.encoders.sequences import TransformerEncoderConfig

if TYPE_CHECKING:
    from torch import Tensor


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
