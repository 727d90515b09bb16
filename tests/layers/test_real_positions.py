"""Padding left out of a batch: the same numbers and gradients as with it, for models that learn on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from regard.data.batch import Batch
from regard.layers import real_positions
from regard.layers.multihead_attention import MultiHead
from regard.layers.real_positions import RealPositions
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    NoEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)
from regard.models.decoders.transformer_decoder import TransformerDecoder
from regard.training.distributed import checkpoint_activations

LENGTHS = torch.tensor([3, 1, 5, 0])


def test_pack_takes_the_real_positions_and_pad_puts_them_back() -> None:
    real = RealPositions(LENGTHS, 6)
    x = torch.randn(4, 6, 2, dtype=torch.float64)
    packed = real.pack(x)
    assert torch.equal(packed, torch.cat([x[0, :3], x[1, :1], x[2, :5]]))
    padded = real.pad(packed)
    assert torch.equal(padded, torch.where((torch.arange(6) < LENGTHS[:, None])[..., None], x, 0))


def test_gradients_of_both_orders() -> None:
    real = RealPositions(LENGTHS, 6)
    x = torch.randn(4, 6, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: real.pack(x).sin(), x)
        assert check(lambda y: real.pad(y).sin(), y)


def test_a_batch_of_padding_alone() -> None:
    real = RealPositions(torch.zeros(2, dtype=torch.long), 3)
    packed = real.pack(torch.randn(2, 3, 4))
    assert packed.shape == (0, 4)
    assert torch.equal(real.pad(packed), torch.zeros(2, 3, 4))


def test_only_where_it_saves_time() -> None:
    padded, full, parts = torch.tensor([4, 9]), torch.tensor([9, 9]), [nn.Linear(1, 1)]
    assert RealPositions.in_training(padded, 9, parts) is not None
    assert RealPositions.in_training(full, 9, parts) is None
    assert RealPositions.in_training(padded.to("meta"), 9, parts) is None
    assert RealPositions.in_training(padded, 9, [nn.Conv1d(1, 1, 1)]) is None


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    source_lengths, target_lengths = torch.tensor([7, 2, 5]), torch.tensor([4, 9, 6])
    source = torch.randint(4, 30, (3, 7), generator=generator)
    target = torch.randint(4, 30, (3, 9), generator=generator)
    source[torch.arange(7) >= source_lengths[:, None]] = 0
    target[torch.arange(9) >= target_lengths[:, None]] = 0
    return Batch(source, source_lengths, target, target_lengths, torch.arange(3))


def _model(**settings: Any) -> EncoderDecoder:
    settings = {"width": 16, "heads": 2, "hidden": 24, "layers": 2, "dropout": 0.0, **settings}
    torch.manual_seed(0)
    config = EncoderDecoderConfig(30, 30, TransformerEncoderConfig(**settings), TransformerDecoderConfig(**settings))
    return EncoderDecoder(config).double().train()


def test_hooks_of_parts_get_padded_batches() -> None:
    model, shapes = _model(), []
    model.encoder.layers[0].register_forward_hook(lambda part, given, out: shapes.append(out.shape))
    model.loss(_batch())
    assert shapes == [(3, 7, 16)]


def test_a_decoder_without_lengths_learns() -> None:
    class Own(TransformerDecoder):
        def forward(self, tokens, annotations, *, weights=False):
            return super().forward(tokens, annotations, weights=weights)

    model = _model()
    model.decoder.__class__ = Own
    assert torch.isfinite(model.loss(_batch()).total)


class OwnAttention(MultiHead):
    """As code of others has it: without the arguments of packed batches."""

    def forward(self, x, *, mask=None):
        return super().forward(x, mask=mask)


class OwnLayer(nn.Module):
    """The same around a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, mask):
        return self.layer(x, mask)


class Convolution(nn.Module):
    """A feed-forward part that looks at the position before."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Conv1d(16, 16, 2, padding=1)

    def forward(self, x):
        return self.map(x.mT)[..., :-1].mT


def _replace_layer(model: EncoderDecoder) -> None:
    model.encoder.layers[0] = OwnLayer(model.encoder.layers[0])


def _replace_attention(model: EncoderDecoder) -> None:
    model.encoder.layers[0].attention = OwnAttention(16, 2)


def _replace_feed_forward(model: EncoderDecoder) -> None:
    model.encoder.layers[0].feed_forward = Convolution()
    model.decoder.layers[1].feed_forward = Convolution()


def _replace_forward(model: EncoderDecoder) -> None:
    forward = model.decoder.forward
    model.decoder.forward = lambda tokens, annotations, *, weights=False: forward(tokens, annotations, weights=weights)


@pytest.mark.parametrize("replace", [_replace_layer, _replace_attention, _replace_feed_forward, _replace_forward])
def test_parts_that_replace_ours_get_padded_batches(replace: Any) -> None:
    """They need not know the arguments of packed ones, and no sentence is seen from another."""
    model = _model()
    replace(model)
    model.double().train()
    batch = _batch()
    rows = model(batch.source, batch.source_lengths, batch.target, target_lengths=batch.target_lengths).features
    batch.source[0, 0] += 1
    again = model(batch.source, batch.source_lengths, batch.target, target_lengths=batch.target_lengths).features
    assert not torch.equal(rows[0], again[0])
    torch.testing.assert_close(rows[1], again[1])
    model.loss(_batch()).total.backward()


def _language_model(masked: bool) -> EncoderDecoder:
    torch.manual_seed(0)
    decoder = TransformerDecoderConfig(width=16, heads=2, hidden=24, layers=2, dropout=0.0, masked=masked)
    return EncoderDecoder(EncoderDecoderConfig(0, 30, NoEncoderConfig(), decoder)).double().train()


@pytest.mark.parametrize("masked", [True, False])
def test_a_language_model_learns_the_same_without_padding(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch, packed = _language_model(masked), _batch(), []
    pack = RealPositions.pack
    monkeypatch.setattr(RealPositions, "pack", lambda self, x: packed.append(x.shape) or pack(self, x))
    loss = model.loss(batch).total
    assert bool(packed) == masked  # without a mask, every position looks at the padding
    monkeypatch.setattr(real_positions, "LARGEST_SHARE", -1)
    torch.testing.assert_close(loss, model.loss(batch).total)


def test_dropout_and_bfloat16_without_padding() -> None:
    """The seed decides what dropout draws, and autocast computes the same parts in bfloat16."""
    model, losses = _model(dropout=0.3), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model.loss(_batch()).total)
    assert losses[0] == losses[1] != losses[2]
    model = _model().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        packed = model.loss(_batch()).total
    packed.backward()
    torch.testing.assert_close(packed, model.loss(_batch()).total, rtol=2e-2, atol=0)
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("settings", [
    {"positions": "sinusoidal"}, {"positions": "rotary", "key_heads": 1}, {"positions": "alibi", "norm": "post"},
])  # fmt: skip
def test_a_transformer_learns_the_same_without_padding(
    settings: dict[str, Any], checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, packed = _model(**settings), []
    if checkpointing:
        checkpoint_activations(model)
    pack = RealPositions.pack
    monkeypatch.setattr(RealPositions, "pack", lambda self, x: packed.append(x.shape) or pack(self, x))

    def learned() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model.loss(_batch(), smoothing=0.1)
        loss.total.backward()
        return [loss.total.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    without = learned()
    assert packed
    monkeypatch.setattr(real_positions, "LARGEST_SHARE", -1)
    packed.clear()
    torch.testing.assert_close(without, learned())
    assert not packed
