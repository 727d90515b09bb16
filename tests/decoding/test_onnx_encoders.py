"""EfficientNet as an ONNX graph: the annotations of torch, from the same bytes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard.models import (
    EfficientNetEncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ShowAttendTellDecoderConfig,
    TransformerDecoderConfig,
    picture_encoders,
)
from tests.support.onnx_graphs import WORDS, check_steps, export_graphs, fed, graph, parts, sources, varied

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime", reason="needs the extra `dev`")

DEEP: dict[str, Any] = {"width": 16, "heads": 4, "hidden": 24, "layers": 1, "dropout": 0.0}
TELL = ShowAttendTellDecoderConfig(embedding=12, width=16, hidden=8, dropout=0.0)


def model_of(decoder: Any, size: int) -> EncoderDecoder:
    """Batch norms with statistics of their own, as trained ones have."""
    torch.manual_seed(0)
    encoder = EfficientNetEncoderConfig(size=size)
    model: EncoderDecoder = varied(EncoderDecoder(EncoderDecoderConfig(0, WORDS, encoder, decoder)))
    for module in model.encoder.modules():
        if isinstance(module, picture_encoders.FrozenBatchNorm):
            module.mean.normal_(std=0.1)
            module.variance.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("size", [64, 96, 224])  # with odd and with even maps
@pytest.mark.parametrize("decoder", [TELL, TransformerDecoderConfig(**DEEP)], ids=["tell", "transformer"])
def test_a_captioner_computes_the_same(decoder: Any, size: int, tmp_path: Path) -> None:
    model = model_of(decoder, size)
    folder = export_graphs(model, tmp_path / "onnx")
    check_steps(model, folder)
    check_steps(model, folder, beams=3)


@pytest.mark.skipif(find_spec(picture_encoders.PACKAGE) is None, reason="needs the ImageNet weights")
@pytest.mark.parametrize("kind", ["none", "int8"])
@torch.no_grad()
def test_the_pretrained_network(kind: Any, tmp_path: Path) -> None:
    """The cells are those of torch to float32 rounding; in an int8 graph they stay so, for convolutions are floats."""
    model = model_of(TELL, 224)
    model.encoder.pretrain()
    source, lengths = sources(model)
    expected = model.encode(source, lengths).vectors
    folder = export_graphs(model, tmp_path / "onnx", quantization=kind)
    memory, _ = parts(graph(folder / "encoder.onnx")(fed(source, lengths)))
    values = torch.from_numpy(memory["memory.values"])
    assert values.shape == expected.shape == (2, 49, 1280)
    assert (values - expected).abs().max() < 1e-5 * expected.abs().max()
