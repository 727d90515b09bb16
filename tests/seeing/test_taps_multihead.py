"""nn.MultiheadAttention, with other attention inside its `forward`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization

from regard import watch

INNER = "0.out_proj.parametrizations.weight.0"


class WrittenOut(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return (w @ w.mT).softmax(-1) @ w


class ByFunction(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(w[None], w[None], w[None])[0]


@pytest.mark.parametrize("weights", [True, False], ids=["with weights", "without weights"])
@pytest.mark.parametrize("inner", [WrittenOut, ByFunction])
def test_attention_that_computes_a_parameter_has_its_own_name(inner: type[nn.Module], weights: bool) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    register_parametrization(attention.out_proj, "weight", inner(), unsafe=True)
    model, x = nn.Sequential(attention), torch.randn(1, 5, 8)
    with torch.no_grad(), watch(model) as seen:
        model[0](x, x, x, need_weights=weights)
    assert seen.faithful is True
    assert [call.name for call in seen if call.shape[-1] == 5] == ["0"]
    others = [call.name for call in seen if call.shape[-1] == 8]
    assert others
    assert set(others) == {INNER}
