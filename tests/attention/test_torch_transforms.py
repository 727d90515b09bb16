"""attend() under torch.compile, torch.export, and on tensors without numbers (fake and meta)."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, POSITIVE, city_block, energies, inputs

ENERGIES = {
    "scaled": r.ScaledDot,
    "cosine": r.Cosine,
    "gaussian": r.Gaussian,
    "general": lambda: r.General(4, 4),
    "additive": lambda: r.Additive(4, 4, 6),
    "modified": lambda: r.Modified(r.ScaledDot(), r.SoftCap(2.0), r.Alibi(3), r.Bias(torch.randn(5, 7))),
    "own function": lambda: city_block,
    "exact": r.Exact,
    "inverse distance": r.InverseDistance,
}
"""Made where they are used: the tensors of an energy are fake only if it is made among fake tensors."""


def test_compile_with_dynamic_shapes_and_grouped_heads() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda q, k: attend(q, k, k, mask=r.causal()), dynamic=True, backend="aot_eager")
    for length in (7, 9):
        q, k = torch.randn(2, 8, length, 16), torch.randn(2, 2, length, 16)
        torch.testing.assert_close(run(q, k), attend(q, k, k, mask=r.causal()))


class Module(torch.nn.Module):
    def __init__(self, energy, mask) -> None:
        super().__init__()
        self.energy, self.mask = energy, mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, energy=self.energy, mask=self.mask)


@pytest.mark.parametrize("name", ["scaled", "gaussian", "additive", "own function"])
def test_export_with_dynamic_shapes(name: str) -> None:
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    energy = energies()[name]
    energy = energy.float() if isinstance(energy, torch.nn.Module) else energy
    length = {0: torch.export.Dim("batch", min=2, max=64), 2: torch.export.Dim("length", min=2, max=512)}
    module = Module(energy, r.causal())
    program = torch.export.export(module, (q, k, v), dynamic_shapes=(length,) * 3)
    q, k, v = (torch.randn(4, 3, 9, 4) for _ in range(3))
    torch.testing.assert_close(program.module()(q, k, v), module(q, k, v))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", ENERGIES)
def test_fake_and_meta_tensors_give_shapes(name: str, device: str) -> None:
    normalize = r.Proportional() if name in POSITIVE else r.Softmax()
    with FakeTensorMode() if device == "cpu" else torch.device("meta"):
        q, k, v = inputs(dtype=torch.float32)
        energy = ENERGIES[name]()
        for mask in (None, r.causal(), r.padding([7, 3]), r.causal() & r.documents(torch.arange(5), torch.arange(7))):
            z, weights = attend(q, k, v, energy=energy, normalize=normalize, mask=mask, weights=True)
            assert z.shape == (2, 3, 5, 6)
            assert weights.dense().shape == weights.shape == (2, 3, 5, 7)
            assert "Weights" in repr(weights)
            repr(mask)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_of_fake_tensors(name: str) -> None:
    with FakeTensorMode():
        q, k, v = inputs((2,), 600, 600)
        for backend in ("auto", "reference", "fused"):
            z = attend(q, k, v, normalize=NORMALIZERS[name], mask=r.padding([3, 600]), backend=backend)
            assert z.shape == (2, 600, 6)
        z, weights = attend(q, k, v, normalize=NORMALIZERS[name], weights=True)
        assert weights.entropy().shape == (2, 600)
        assert weights.received().shape == (2, 600)
        assert weights.tile(slice(2, 5), slice(0, 9)).shape == (2, 3, 9)


def test_masks_of_fake_lengths_print() -> None:
    with FakeTensorMode():
        assert "int64" in repr(r.padding([5, 3]))
