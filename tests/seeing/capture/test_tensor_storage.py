"""TensorStorage: copies are what the model used, within the limit, and are freed with their call."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)


class Layers(nn.Module):
    """Several layers that share a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layer:
            x = x + layer(x, x + 1, x * 2, mask)
        return x


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_layers_that_share_a_mask_are_all_kept(where: str, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(2, 2, 6, 8)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept") as seen:
        model(x, mask)
        mask[..., 0, 3] = True  # the same object with other contents is another mask
        model(x, mask)
    assert not seen.missed
    assert len(seen) == 6
    assert seen[0].weights.energies.mask.seen is seen[2].weights.energies.mask.seen  # type: ignore[union-attr]
    assert float(seen[0].weights.dense()[0, 0, 0, 3]) == 0 < float(seen[3].weights.dense()[0, 0, 0, 3])
    assert seen.faithful


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_a_padded_model_is_kept_elsewhere(where: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40
    )
    model = transformers.BertModel(config).eval()
    ids, mask = torch.randint(3, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept") as seen:
        model(ids, attention_mask=mask)
    assert len(seen) == 3
    assert seen.faithful, seen
    assert float(seen[2].weights.dense()[1, :, :, 4:].max()) == 0


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_a_limit_holds_for_copies_and_they_go_with_their_call(where: str, tmp_path: Path) -> None:
    model, x, mask = Layers(), torch.randn(2, 2, 6, 8), torch.ones(6, 6).tril()
    one = 3 * x.nbytes + 2 * mask.nbytes
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept", limit=2 * one) as seen:
        model(x, mask)
    assert len(seen) == 2
    assert "1 calls were not kept" in repr(seen)
    del x, mask
    gc.collect()
    assert not seen._recorder.storage._copies  # no copy is held for an original that is gone
