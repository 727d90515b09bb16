"""gradcheck in float64 for every energy × normalizer, through the reference and through our own kernels.

Kernels are differentiated once. Second derivatives, forward mode and torch.func are the formula's.
"""

import pytest
import torch

import regard as r
from regard import attend
from regard.attention.backends import fused
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


@pytest.mark.parametrize("normalize", SMOOTH)
@pytest.mark.parametrize("energy", ["scaled", "gaussian", "additive", "own function"])
def test_blocks_have_the_gradients_of_the_formula(energy: str, normalize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 16)
    form, scale = energies()[energy], torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    leaves = [*form.parameters()] if isinstance(form, torch.nn.Module) else []
    if energy == "own function":  # one that closes over a parameter
        leaves, form = [scale], lambda q, k: (q * scale) @ k.mT
    q, k, v = inputs((2, 3), grad=True)

    def gradients(backend: str) -> tuple[torch.Tensor, ...]:
        z = attend(q, k, v, energy=form, normalize=SMOOTH[normalize], mask=r.causal(1), backend=backend)
        return torch.autograd.grad(z.square().sum(), (q, k, v, *leaves))

    torch.testing.assert_close(gradients("fused"), gradients("reference"))


SAMPLE = [
    ("scaled", r.Softmax(sink=0.5)),
    ("cosine", r.Sparsemax()),
    ("gaussian", r.Softmax()),
    ("gaussian", r.Entmax(1.5)),
    ("additive", r.Softmax()),
    ("own function", r.Softmax(0.5)),
    ("inverse distance", r.Proportional()),
]


@pytest.mark.parametrize(("energy", "normalize"), SAMPLE)
def test_the_formula_has_every_derivative(energy: str, normalize: r.Normalizer) -> None:
    options = {"energy": (energies() | POSITIVE)[energy], "normalize": normalize, "mask": r.causal(1)}
    q, k, v = inputs((3,), 5, 7, 4, 1, grad=True)

    def run(q, k, v):
        return attend(q, k, v, backend="reference", **options)

    assert torch.autograd.gradgradcheck(run, (q, k, v), fast_mode=True)
    q, k, v = (x.detach() for x in (q, k, v))
    expected = torch.autograd.functional.jacobian(lambda q: run(q, k, v), q, vectorize=False)
    torch.testing.assert_close(torch.func.jacrev(run)(q, k, v), expected)
    torch.testing.assert_close(torch.func.jacfwd(run)(q, k, v), expected)
    torch.testing.assert_close(torch.vmap(run)(q, k, v), run(q, k, v))


@pytest.mark.parametrize("backend", ["sdpa", "fused"])
@pytest.mark.parametrize("energy", [r.ScaledDot(), r.Gaussian(), r.Additive(4, 4, 3).double()])
def test_kernels_are_differentiated_once(energy, backend: str) -> None:
    if backend == "sdpa" and not isinstance(energy, r.ScaledDot):
        pytest.skip("not a dot product")
    q, k, v = inputs((2,), grad=True)
    z = attend(q, k, v, energy=energy, backend=backend)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        torch.autograd.grad(z.sum(), q, create_graph=True)
    for transform in (torch.vmap, torch.func.jacrev, torch.func.jacfwd):
        with pytest.raises(ValueError, match='backend="reference"'):
            transform(lambda q: attend(q, k[0], v[0], energy=energy, backend=backend))(q.detach())


@pytest.mark.parametrize("energy", ["scaled", "gaussian", "additive"])
def test_auto_takes_the_formula_inside_a_transform(energy: str) -> None:
    form = energies()[energy]
    q, k, v = inputs((3,))
    expected = attend(q, k, v, energy=form, backend="reference")
    torch.testing.assert_close(torch.vmap(lambda *x: attend(*x, energy=form))(q, k, v), expected)
    (slope,) = torch.func.grad(lambda x: attend(x[0], k, v, energy=form).square().sum())((q,))
    leaf = q.clone().requires_grad_()
    (truth,) = torch.autograd.grad(attend(leaf, k, v, energy=form).square().sum(), leaf)
    torch.testing.assert_close(slope, truth)
