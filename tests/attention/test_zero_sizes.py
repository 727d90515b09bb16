"""Batch, heads, queries, keys and widths of size zero, everywhere PyTorch's scaled_dot_product_attention takes them."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, city_block

#          batch, heads, T_q, T_k, D, D_v
SIZES = [
    (0, 2, 5, 6, 4, 3),
    (2, 0, 5, 6, 4, 3),
    (2, 3, 0, 6, 4, 3),
    (2, 3, 5, 0, 4, 3),
    (2, 3, 5, 6, 0, 3),
    (2, 3, 5, 6, 4, 0),
]
NAMES = ["batch", "heads", "queries", "keys", "width", "value width"]
ENERGIES = {
    "scaled": lambda d: r.ScaledDot(),
    "cosine": lambda d: r.Cosine(),
    "gaussian": lambda d: r.Gaussian(),
    "inverse distance": lambda d: r.InverseDistance(),
    "exact": lambda d: r.Exact(),
    "general": lambda d: r.General(d, d),
    "additive": lambda d: r.Additive(d, d, 5),
    "modified": lambda d: r.Modified(r.ScaledDot(), r.SoftCap(3.0)),
    "own function": lambda d: city_block,
}
MASKS = {"none": None, "causal": r.causal(), "window": r.causal(1) & r.window(2), "not": ~r.causal()}


def tensors(size, grad: bool = True):
    b, h, t_q, t_k, d, d_v = size
    shapes = (b, h, t_q, d), (b, h, t_k, d), (b, h, t_k, d_v)
    return [torch.randn(shape, requires_grad=grad) for shape in shapes]


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("size", SIZES, ids=NAMES)
def test_as_pytorch_has_it(size, mask: str, backend: str) -> None:
    q, k, v = tensors(size)
    seen = None if MASKS[mask] is None else MASKS[mask].dense(size[:2], *size[2:4], q.device)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen)
    z, weights = attend(q, k, v, mask=MASKS[mask], backend=backend, weights=True)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(attend(q, k, v, mask=MASKS[mask], backend=backend), expected)
    assert weights.dense().shape == size[:4]
    gradients = torch.autograd.grad(z.sum(), (q, k, v), allow_unused=True)
    for x, ours, theirs in zip((q, k, v), gradients, torch.autograd.grad(expected.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(torch.zeros_like(x) if ours is None else ours, theirs)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("normalize", [*NORMALIZERS, "proportional"])
@pytest.mark.parametrize("size", SIZES, ids=NAMES)
def test_every_energy_and_normalizer(size, normalize: str, backend: str) -> None:
    q, k, v = tensors(size)
    normalizer = (NORMALIZERS | {"proportional": r.Proportional()})[normalize]
    for name, make in ENERGIES.items():
        if normalize == "proportional" and name not in ("exact", "inverse distance"):
            continue
        energy = make(size[4])
        z, weights = attend(
            q, k, v, energy=energy, normalize=normalizer, mask=r.causal(1), backend=backend, weights=True
        )
        assert z.shape == (*size[:3], size[5])
        assert z.isfinite().all()
        assert weights.dense().shape == size[:4]
        reference = attend(q, k, v, energy=energy, normalize=normalizer, mask=r.causal(1), backend="reference")
        torch.testing.assert_close(z, reference)
        for x, gradient in zip((q, k, v), torch.autograd.grad(z.sum(), (q, k, v), allow_unused=True), strict=True):
            assert gradient is None or (gradient.shape == x.shape and gradient.isfinite().all())


@pytest.mark.parametrize("normalize", [r.Softmax(), r.Sparsemax(), r.Entmax(1.5), r.Hard()], ids=repr)
@pytest.mark.parametrize("size", SIZES, ids=NAMES)
def test_weights_of_nothing(size, normalize) -> None:
    q, k, v = tensors(size, grad=False)
    z, weights = attend(q, k, v, normalize=normalize, mask=r.causal(1), weights=True)
    b, h, t_q, t_k = size[:4]
    whole = weights.dense()
    assert weights.shape == whole.shape == (b, h, t_q, t_k)
    torch.testing.assert_close(weights.tile(slice(None), slice(None)), whole)
    torch.testing.assert_close(weights.received(), whole.sum(-2))
    assert weights.entropy().shape == (b, h, t_q)
    assert weights.offset(0).shape == (b, h, t_q)
    assert weights.on(torch.zeros(t_k, dtype=torch.bool)).shape == (b, h, t_q)
    assert weights.fidelity(v, z).shape == (b, h)
    assert weights.map((2, 2)).shape == (b, h, min(t_q, 2), min(t_k, 2))
    assert weights.map((2, 2), pool="mean").shape == (b, h, min(t_q, 2), min(t_k, 2))
    if t_k:
        assert weights.top(2).values.shape == (b, h, t_q, 2)
    if b and h:
        assert weights[0, 0].dense().shape == (t_q, t_k)
    assert weights[:, 0:0].dense().shape == (b, 0, t_q, t_k)
    assert repr(weights)


def test_lists_of_lengths_for_an_empty_batch() -> None:
    q = torch.randn(0, 2, 5, 4)
    assert attend(q, q, q, mask=r.padding([])).shape == q.shape
