"""Contributions on a GPU: the same numbers as on a CPU in float64, and memory that grows with the length."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard as r
from regard import Contributions, attend, watch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_those_of_float64(dtype: torch.dtype) -> None:
    q, g = torch.randn(2, 2, 8, 700, 32, device="cuda").to(dtype)
    k, v = torch.randn(2, 2, 2, 700, 32, device="cuda").to(dtype)
    _, w = attend(q, k, v, mask=r.causal(), weights=True)
    _, exact = attend(*(x.double().cpu() for x in (q, k, v)), mask=r.causal(), weights=True)
    ours, theirs = Contributions(w, v, g), Contributions(exact, v.double().cpu(), g.double().cpu())
    wanted = {"total": True, "size": True, "received": True, "received_size": True, "spread": True, "map": (16, 16)}
    stats, expected = ours.stats(**wanted), theirs.stats(**wanted)
    for name in wanted:
        a, b = getattr(stats, name).cpu().double(), getattr(expected, name)
        assert float((a - b).norm() / b.norm()) < 1e-4, name


def test_attention_times_gradient_of_the_flash_kernel() -> None:
    """∂L/∂o of a bfloat16 model on its fast kernel, against float64 on the CPU."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(64, 3 * 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model, x = Layer(), torch.randn(2, 300, 64)
    results = []
    for device, dtype in (("cuda", torch.bfloat16), ("cpu", torch.float64)):
        own = model.to(device, dtype)
        with watch(own, gradients=True) as seen:
            loss = own(x.to(device, dtype)).double().square().sum()
        loss.backward()
        results.append(seen[0].contributions().received().double().cpu())
    fast, exact = results
    assert float((fast - exact).norm() / exact.norm()) < 5e-2


def test_memory_is_linear_in_the_length() -> None:
    """At 65,536 tokens one matrix of one head in float32 is 16 GiB."""
    q, k, v, g = torch.randn(4, 1, 65536, 32, device="cuda", dtype=torch.bfloat16)
    _, w = attend(q, k, v, mask=r.causal(), weights=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    Contributions(w, v, g).stats(total=True, top=4, received=True, received_size=True, spread=True, map=(64, 64))
    assert torch.cuda.max_memory_allocated() - before < 1 << 30
