"""Positions on a GPU: every backend beside the reference in float64, with gradients to what is learned."""

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.attend import Backend

pytestmark = pytest.mark.gpu
HEADS = 4


def _learned(name: str) -> tuple[torch.nn.Module, list[torch.nn.Parameter]]:
    if name == "rotary":
        return r.Rotary(), []
    table = torch.randn(32, HEADS, device="cuda")
    part = r.Alibi(torch.nn.Parameter(table[0].abs())) if name == "alibi" else r.RelativeBias(torch.nn.Parameter(table))
    energy = r.Modified(r.ScaledDot(), part)
    return energy, list(energy.parameters())


@pytest.mark.parametrize("backend", ["auto", "flex", "fused", "sdpa"])
@pytest.mark.parametrize("name", ["rotary", "alibi", "t5"])
def test_every_backend(name: str, backend: Backend) -> None:
    torch.manual_seed(0)
    energy, learned = _learned(name)
    inputs = [torch.randn(2, HEADS, 1200, 64, device="cuda", requires_grad=True) for _ in "qkv"]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    truth = attend(*wide, energy=energy, mask=r.causal(), backend="reference")
    z, w = attend(*inputs, energy=energy, mask=r.causal(), backend=backend, weights=True)
    torch.testing.assert_close(z.double(), truth, rtol=0, atol=5e-3)  # PyTorch's kernels multiply in TF32
    assert float(w.fidelity(inputs[2], z).max()) < 5e-3
    got = torch.autograd.grad(z.square().sum(), [*inputs, *learned])
    want = torch.autograd.grad(truth.square().sum(), [*wide, *learned])
    for ours, exact in zip(got, want, strict=True):
        assert float((ours - exact).abs().max()) <= 0.02 * float(exact.abs().max())
