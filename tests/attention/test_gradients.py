"""gradcheck in float64 for every energy × normalizer, through the reference and through our own kernels."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs

SMOOTH = {name: n for name, n in NORMALIZERS.items() if name != "hard"}


def _check(energy, normalize, backend: str, mask: r.Mask | None = None) -> None:
    q, k, v = inputs((2,), 3, 4, 4, 2, grad=True)
    leaves = list(energy.parameters()) if isinstance(energy, torch.nn.Module) else []

    def function(q, k, v, *_):
        return attend(q, k, v, energy=energy, normalize=normalize, mask=mask, backend=backend)

    assert torch.autograd.gradcheck(function, (q, k, v, *leaves))


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("normalize", SMOOTH)
@pytest.mark.parametrize("energy", [*(name for name in energies() if name not in ("modified", "biased")), *POSITIVE])
def test_energies_and_normalizers(energy: str, normalize: str, backend: str) -> None:
    """Those with a bias per head need heads; `test_biases_learn` has them."""
    _check((energies() | POSITIVE)[energy], SMOOTH[normalize], backend)


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa"])
def test_biases_learn(backend: str) -> None:
    q, k, v = inputs((2, 3), 3, 4, 4, 2, grad=True)
    bias = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)

    def function(q, k, v, bias):
        return attend(q, k, v, energy=r.Modified(r.ScaledDot(), r.Bias(bias), r.Alibi(3)), backend=backend)

    assert torch.autograd.gradcheck(function, (q, k, v, bias))


@pytest.mark.parametrize("energy", POSITIVE)
def test_proportional(energy: str) -> None:
    _check(POSITIVE[energy], r.Proportional(), "fused")


def test_hard_teaches_the_values() -> None:
    q, k, v = inputs((2,), 3, 4, 4, 2)
    assert torch.autograd.gradcheck(lambda v: attend(q, k, v, normalize=r.Hard()), (v.requires_grad_(),))


@pytest.mark.parametrize("mask", [r.causal(), r.padding([0, 3]), r.window(2), ~r.causal()])
def test_additive_kernel_under_masks(mask: r.Mask) -> None:
    _check(r.Additive(4, 4, 5, bias=True).double(), r.Softmax(0.7), "fused", mask)


def test_dense_weights_are_differentiable() -> None:
    q, k, v = inputs((2,), 3, 4, 4, 2, grad=True)

    def function(q, k):
        return attend(q, k, v, mask=r.causal(1), weights=True)[1].dense()

    assert torch.autograd.gradcheck(function, (q, k))
