"""attend() under torch.compile, torch.export and torch.func, and on tensors without numbers (fake and meta)."""

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


IDS = torch.tensor([0, 0, 1, 1, 2, 2])
SINK = torch.tensor([0.5, -1.0, 2.0])

FUNCTIONS = {
    "mask_mod": {"mask": lambda b, h, i, j: IDS[i] == IDS[j]},
    "score_mod": {"energy": r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + SINK[h] * (i - j))},
    "function of energies": {"normalize": lambda e: torch.softmax(e, -1), "mask": r.causal()},
    "function with a mask": {"normalize": lambda e, mask: e.sigmoid() * mask, "mask": r.causal()},
    "module": {"normalize": torch.nn.Softmax(-1)},
    "sink": {"normalize": r.Softmax(sink=SINK)},
    "unnormalized": {"normalize": r.Unnormalized(), "mask": r.causal([0, 2])},
    "corner": {"mask": r.causal("bottom-right") & r.padding(queries=[2, 6])},
}


def _same_lengths() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, 6, 4) for _ in range(3)]


class Functions(torch.nn.Module):
    def __init__(self, options: dict) -> None:
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return attend(q, k, v, **self.options)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compile_and_export(name: str) -> None:
    model, tensors = Functions(FUNCTIONS[name]), _same_lengths()
    truth = model(*tensors)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*tensors), truth)
    torch.testing.assert_close(torch.export.export(model, tuple(tensors)).module()(*tensors), truth)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_transforms(name: str) -> None:
    q, k, v = _same_lengths()
    model = Functions({**FUNCTIONS[name], "backend": "reference"})
    leaf = q.clone().requires_grad_()
    (truth,) = torch.autograd.grad(model(leaf, k, v).sin().sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: model(x, k, v).sin().sum())(q), truth)
    slope = torch.randn_like(q)
    _, along = torch.func.jvp(lambda x: model(x, k, v).sin().sum(), (q,), (slope,))
    torch.testing.assert_close(along, (truth * slope).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fake_tensors(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = attend(*(mode.from_tensor(x) for x in _same_lengths()), **FUNCTIONS[name])
    assert out.shape == (2, 3, 6, 4)


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
