"""Eager attention in bfloat16 and float16: what it computed, rounding included, in memory of O(T)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard import load_trace, watch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from regard import Seen

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 40, "pad_token_id": 0, "num_key_value_heads": 2, "head_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": SMALL,
    "Gemma2": {**SMALL, "sliding_window": 30, "attn_logit_softcapping": 2.0},
    "GptOss": {**SMALL, "sliding_window": 30, "num_local_experts": 2, "num_experts_per_tok": 1},
}


def eager(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    config._attn_implementation = "eager"
    model: nn.Module = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # scores that rounding moves
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model.to(dtype)


def run(model: nn.Module, length: int) -> tuple[Seen, list[torch.Tensor]]:
    ids = torch.randint(3, 50, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), watch(model) as seen:
        return seen, model(input_ids=ids, output_attentions=True).attentions


def held(seen: Seen) -> int:
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for c in seen for x in c.tensors()}
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_rounded_scores_in_memory_that_grows_with_the_length(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = eager(name, dtype)
    short, long = [run(model, length) for length in (128, 512)]
    for seen, wanted in (short, long):
        assert [call.origin for call in seen] == ["eager"] * 2
        assert seen.faithful is True, seen
        for call, theirs in zip(seen, wanted, strict=True):
            error = (call.weights.tile(slice(None), slice(None)) - theirs.float()).abs().max()
            assert float(error) <= (4e-3 if dtype == torch.bfloat16 else 5e-4)  # weights are rounded too
    assert held(long[0]) <= 4.5 * held(short[0])
    short[0].save(tmp_path / "trace")
    back = load_trace(tmp_path / "trace")
    for kept, call in zip(short[0], back, strict=True):
        torch.testing.assert_close(kept.weights.entropy(), call.weights.entropy())


def test_a_padded_batch_keeps_intervals_of_each_entry() -> None:
    model = eager("Llama", torch.float32)
    ids = torch.randint(3, 50, (2, 130), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 100:] = 0
    with torch.no_grad(), watch(model) as seen:
        wanted = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert seen.faithful is True
    assert not any(x.numel() >= 130 * 130 for call in seen for x in call.tensors())
    for call, theirs in zip(seen, wanted, strict=True):
        torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), theirs, atol=2e-5, rtol=0)


def test_a_mask_with_an_empty_row_or_a_gap_is_kept_as_it_is() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x = torch.randn(1, 2, 150, 4, generator=torch.Generator().manual_seed(0))
    for row in (slice(None), slice(3, 9)):
        mask = torch.ones(150, 150, dtype=torch.bool).tril()
        mask[20, row] = False
        model = Attention()
        with torch.no_grad(), watch(model) as seen:
            model(x, mask)
        shown = seen[0].weights.tile(slice(None), slice(None))
        assert float(shown[0, 0][~mask].abs().max()) == 0
        assert any(x.numel() == 150 * 150 for x in seen[0].tensors())
