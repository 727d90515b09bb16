"""Layers that compute their activations again: the same loss and gradients, dropout included."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.models import EncoderDecoder, EncoderDecoderConfig
from regard.training.distributed import checkpoint_activations
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch


def model(encoder: str, decoder: str) -> EncoderDecoder:
    torch.manual_seed(7)
    config = EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS[encoder], DECODERS[decoder])
    return EncoderDecoder(config)


def test_the_gradients_are_the_same_and_fewer_activations_are_kept() -> None:
    plain = model("Transformer", "Transformer").double()
    for module in plain.modules():
        if hasattr(module, "p"):
            module.p = 0.3
    recomputing = copy.deepcopy(plain)
    checkpoint_activations(recomputing)
    pairs, kept, gradients = batch(sentences=5), [], []
    for each in (plain, recomputing):
        count = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        torch.manual_seed(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = each.loss(pairs, smoothing=0.1)
        kept.append(count)
        gradients.append(torch.autograd.grad(loss.total, list(each.parameters())))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert kept[1] < 0.5 * kept[0]


def test_a_model_without_transformer_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="is for Transformer layers, and this model has none"):
        checkpoint_activations(model("bidirectional GRU", "Bahdanau"))
