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


TWO_LENGTHS = {
    "bottom-right": lambda queries, keys: {"mask": r.causal("bottom-right")},
    "bottom-right, sparsemax": lambda queries, keys: {"mask": r.causal("bottom-right"), "normalize": r.Sparsemax()},
    "window": lambda queries, keys: {"mask": r.causal("bottom-right") & r.window(3, offset=keys - queries)},
    "alibi": lambda queries, keys: {"energy": r.Modified(r.ScaledDot(), r.Alibi(3, offset=keys - queries))},
    "rotary": lambda queries, keys: {"energy": r.Rotary(offset=keys - queries), "mask": r.padding([3, 2])},
}
MADE_INSIDE = {
    "bottom-right": lambda: r.causal("bottom-right"),
    "padding": lambda: r.padding([3, 2]),
    "mask_mod": lambda: lambda b, h, i, j: i >= j,
}


def _two_lengths(queries: int, keys: int) -> list[torch.Tensor]:
    return [torch.randn(2, 3, length, 4) for length in (queries, keys, keys)]


@pytest.mark.parametrize("name", TWO_LENGTHS)
def test_export_with_two_dynamic_lengths(name: str) -> None:
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return r.attend(q, k, v, **TWO_LENGTHS[name](q.shape[-2], k.shape[-2]))

    queries, keys = ({2: torch.export.Dim(x, min=2, max=64)} for x in ("queries", "keys"))
    program = torch.export.export(
        Attention(), tuple(_two_lengths(6, 8)), dynamic_shapes=(queries, keys, keys), strict=False
    )
    for tensors in (_two_lengths(5, 11), _two_lengths(7, 7), _two_lengths(9, 4)):
        torch.testing.assert_close(program.module()(*tensors), Attention()(*tensors))


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_masks_made_inside_a_compiled_function_with_dynamic_shapes(name: str) -> None:
    torch.compiler.reset()

    def function(q, k, v):
        return r.attend(q, k, v, mask=MADE_INSIDE[name]())

    compiled = torch.compile(function, dynamic=True, fullgraph=True, backend="aot_eager")
    for tensors in (_two_lengths(6, 8), _two_lengths(5, 11)):
        torch.testing.assert_close(compiled(*tensors), function(*tensors))
