"""Padding left out of a batch: the same numbers and gradients as with it, for models that learn on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from regard.data.batch import Batch
from regard.layers import real_positions
from regard.layers.real_positions import RealPositions
from regard.models import EncoderDecoder, EncoderDecoderConfig, TransformerDecoderConfig, TransformerEncoderConfig
from regard.models.decoders.transformer_decoder import TransformerDecoder
from regard.training.distributed.activation_checkpointing import checkpoint_activations

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
    padded, full, module = torch.tensor([4, 9]), torch.tensor([9, 9]), nn.Sequential(nn.Linear(1, 1))
    assert RealPositions.in_training(padded, 9, module) is not None
    assert RealPositions.in_training(full, 9, module) is None
    assert RealPositions.in_training(padded.to("meta"), 9, module) is None


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
