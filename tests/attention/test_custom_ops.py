"""Attention under torch.compile, and runs that give the same bits."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, city_block, inputs


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()  # it gives up on a function it has compiled many times, as these tests do


class Bahdanau(torch.nn.Module):
    def __init__(self, normalize: r.Normalizer, mask: r.Mask | None) -> None:
        super().__init__()
        self.energy, self.normalize, self.mask = r.Additive(4, 4, 8), normalize, mask

    def forward(self, q, k, v):
        return attend(q, k, v, energy=self.energy, normalize=self.normalize, mask=self.mask, backend="fused")


@pytest.mark.parametrize("mask", [None, r.causal(), r.causal() & r.padding([3, 6]), ~r.causal()])
@pytest.mark.parametrize("normalize", ["softmax", "entmax 1.5"])
def test_compiles_whole_with_gradients(normalize: str, mask: r.Mask | None) -> None:
    module = Bahdanau(NORMALIZERS[normalize], mask)
    q, k, v = inputs((2, 3), dtype=torch.float32, grad=True)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    direction = torch.randn(2, 3, 5, 6)
    leaves = [q, k, v, *module.parameters()]
    mine, plain = (torch.autograd.grad(f(q, k, v), leaves, direction) for f in (compiled, module))
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("energy", [r.ScaledDot(), r.Gaussian(), r.Modified(r.Dot(), r.SoftCap(3)), city_block])
def test_other_requests_compile_whole(energy) -> None:
    q, k, v = inputs((2, 3), dtype=torch.float32)

    def function(q, k, v):
        return r.attend(q, k, v, energy=energy, mask=r.causal() & r.window(3))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))


def test_same_inputs_same_bits() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        q, k, v = inputs((2, 2), 40, 50, 8, 8, dtype=torch.float32, grad=True)
        energy = r.Additive(8, 8, 16)
        z = attend(q, k, v, energy=energy, dropout=0.2, backend="fused")
        runs.append([z, *torch.autograd.grad(z.square().sum(), (q, k, v, *energy.parameters()))])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(
    "mask", [r.causal() & r.window(20), r.causal() & r.padding([64, 40]), ~r.documents(torch.arange(64) // 30)]
)
def test_masks_and_modifiers_can_be_traced_for_flex(mask: r.Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU compiles: our rules as FlexAttention's mask_mod and score_mod, traced, then run unfused."""
    from regard.attention.backends import flex

    traced = torch.compile(flex.flex_attention, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(flex, "_kernel", lambda device: traced)
    q, k, v = torch.randn(2, 4, 64, 16), torch.randn(2, 2, 64, 16), torch.randn(2, 2, 64, 16)
    energy = r.Modified(r.ScaledDot(), r.SoftCap(5.0), r.Alibi(4), r.Bias(torch.randn(64, 64)))
    for how in (r.ScaledDot(), energy):
        z = attend(q, k, v, energy=how, mask=mask, backend="flex")
        torch.testing.assert_close(z, attend(q, k, v, energy=how, mask=mask, backend="reference"))
