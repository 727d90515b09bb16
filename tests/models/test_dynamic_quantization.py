"""Models that PyTorch's dynamic quantization converted: they search, and predict nearly what they did before."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

from regard.decoding import search
from regard.models import Annotations, EncoderDecoder, EncoderDecoderConfig, ShowAttendTellDecoderConfig
from regard.models.decoders.show_attend_tell import ShowAttendTellDecoder
from tests.support.small_models import DECODERS, ENCODERS, VOCABULARY, batch

pytestmark = [
    pytest.mark.skipif(torch.backends.quantized.engine == "none", reason="this PyTorch has no quantized products"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch moves its quantization to a package of its own
]


def _model(encoder: str, decoder: str) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(EncoderDecoderConfig(VOCABULARY, VOCABULARY, ENCODERS[encoder], DECODERS[decoder])).eval()


@torch.no_grad()
def _check(model: EncoderDecoder) -> EncoderDecoder:
    """The quantized model, after a search and a comparison of logits."""
    quantized: EncoderDecoder = torch.ao.quantization.quantize_dynamic(model)
    sentences = batch(2, places=4)
    annotations = quantized.encode(sentences.source, sentences.source_lengths)
    assert len(search(quantized, annotations, beams=3, longest=3)) == 2
    tokens = sentences.target[:, :-1]
    exact = model.readout(model.decoder(tokens, model.encode(sentences.source, sentences.source_lengths)).features)
    rounded = quantized.readout(quantized.decoder(tokens, annotations).features)
    assert (rounded - exact).norm() < 0.1 * exact.norm()
    assert not torch.equal(rounded, exact)
    return quantized


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_searches(decoder: str) -> None:
    _check(_model("Transformer", decoder))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_is_read(encoder: str) -> None:
    _check(_model(encoder, "Transformer"))


@pytest.mark.parametrize("decoder", ["Transformer", "Bahdanau, dot"])
def test_every_linear_layer_is_quantized_where_no_other_code_reads_its_matrix(decoder: str) -> None:
    """PyTorch replaces layers whose type is exactly `nn.Linear`."""
    quantized = _check(_model("Transformer", decoder))
    assert not [layer for layer in quantized.modules() if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize("attention", ["none", "soft", "hard"])
@torch.no_grad()
def test_show_attend_and_tell_searches(attention: Literal["none", "soft", "hard"]) -> None:
    config = ShowAttendTellDecoderConfig(attention=attention, hidden=6, embedding=8, width=10)
    decoder = torch.ao.quantization.quantize_dynamic(ShowAttendTellDecoder(config, VOCABULARY, 12).eval())
    assert not [layer for layer in decoder.modules() if type(layer) is nn.Linear]
    vectors = torch.randn(3, 7, 12)
    assert len(search(decoder, Annotations(vectors, torch.full((3,), 7), vectors.mean(1)), beams=2, longest=3)) == 3


def test_the_largest_matrices_of_a_recurrent_model_are_quantized() -> None:
    quantized = _check(_model("bidirectional GRU", "Bahdanau"))
    for layer in (quantized.decoder.output, quantized.decoder.join):
        assert not isinstance(layer, nn.Linear)
