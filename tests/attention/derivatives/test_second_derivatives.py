"""Derivatives of every kind beside those of the formula: twice backward, forward mode, transforms of torch.func."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad

import regard as r
from regard import attend
from regard.attention import blocked_attention
from regard.attention.backends import flex
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs

SMOOTH = {name: n for name, n in NORMALIZERS.items() if name not in ("hard", "entmax 1.2")}
PAIRS = [
    *((name, "softmax") for name in energies()),
    *((energy, name) for energy in ("scaled", "gaussian", "additive") for name in SMOOTH if name != "softmax"),
    *((name, "proportional") for name in POSITIVE if name != "exact"),
]
SAMPLE = [
    ("scaled", "softmax"),
    ("scaled", "entmax 1.5"),
    ("cosine", "sparsemax"),
    ("gaussian", "softmax"),
    ("gaussian", "entmax 3"),
    ("general", "cool softmax"),
    ("additive", "softmax"),
    ("additive", "sparsemax"),
    ("modified", "softmax"),
    ("biased", "softmax"),
    ("own function", "softmax"),
    ("inverse distance", "proportional"),
    ("own positive", "proportional"),
]
BACKENDS = ["auto", "fused", "reference"]


def problem(energy: str, normalize: str) -> dict:
    normalizers = SMOOTH | {"proportional": r.Proportional()}
    return {"energy": (energies() | POSITIVE)[energy], "normalize": normalizers[normalize]}


def second(q, k, v, leaves, **options) -> list[torch.Tensor]:
    z = attend(q, k, v, **options)
    first = torch.autograd.grad((z**3).sum(), (q, k, v, *leaves), create_graph=True)
    return list(torch.autograd.grad(sum((g**2).sum() for g in first), (q, k, v, *leaves)))


@pytest.mark.parametrize(("energy", "normalize"), PAIRS)
def test_twice_backward_over_several_blocks(energy: str, normalize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second derivative was zero as soon as there was more than one block of rows."""
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    options = problem(energy, normalize)
    leaves = list(options["energy"].parameters()) if isinstance(options["energy"], torch.nn.Module) else []
    q, k, v = inputs((2, 3), grad=True)
    mask = r.causal(1) & r.padding([7, 4])
    expected = second(q, k, v, leaves, mask=mask, backend="reference", **options)
    for backend in ("auto", "fused"):
        torch.testing.assert_close(second(q, k, v, leaves, mask=mask, backend=backend, **options), expected)


@pytest.mark.parametrize(("energy", "normalize"), SAMPLE)
def test_the_formula_beside_finite_differences(energy: str, normalize: str) -> None:
    options = problem(energy, normalize)
    q, k, v = inputs((1, 3), 5, 7, 4, 1, grad=True)
    assert torch.autograd.gradgradcheck(
        lambda *x: attend(*x, backend="reference", **options), (q, k, v), fast_mode=True
    )


def test_third_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)

    def third(backend: str, energy) -> torch.Tensor:
        y = attend(x, x, x, energy=energy, backend=backend).pow(3).sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            y = y.square()
        return y

    for energy in (r.ScaledDot(), r.Gaussian()):
        expected = third("reference", energy)
        for backend in ("auto", "fused"):
            torch.testing.assert_close(third(backend, energy), expected)


def test_one_tensor_as_queries_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past 512 rows, as it was found."""
    x = torch.randn(1, 600, 2, dtype=torch.float64, requires_grad=True)

    def twice(backend: str) -> torch.Tensor:
        z = attend(x, x, x, energy=lambda q, k: q @ k.mT, backend=backend)
        (g,) = torch.autograd.grad((z**3).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g**2).sum(), x)
        return h

    torch.testing.assert_close(twice("auto"), twice("reference"))


@pytest.mark.parametrize("backend", ["sdpa", "fused"])
def test_second_derivatives_with_dropout_name_a_backend(backend: str) -> None:
    q, k, v = inputs(grad=True)
    energy = r.ScaledDot() if backend == "sdpa" else r.Additive(4, 4, 3).double()
    z = attend(q, k, v, energy=energy, dropout=0.5, backend=backend)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        torch.autograd.grad(z.sum(), q, create_graph=True)


def test_a_function_that_closes_over_a_parameter_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    q, k, v = inputs((2, 3), grad=True)
    options = {"energy": lambda q, k: (q * scale) @ k.mT}
    expected = second(q, k, v, [scale], backend="reference", **options)
    torch.testing.assert_close(second(q, k, v, [scale], backend="fused", **options), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("energy", "normalize"), SAMPLE)
def test_transforms_of_torch_func(energy: str, normalize: str, backend: str) -> None:
    options = problem(energy, normalize)
    q, k, v = inputs((3,), 5, 7, 4, 2)

    def run(q, k, v, backend=backend):
        return attend(q, k, v, mask=r.causal(1), backend=backend, **options)

    def value(q):
        return run(q, k, v).pow(3).sum()

    expected = torch.autograd.functional.jacobian(lambda q: run(q, k, v, "reference"), q, vectorize=False)
    torch.testing.assert_close(torch.func.jacrev(run)(q, k, v), expected)
    torch.testing.assert_close(torch.func.jacfwd(run)(q, k, v), expected)
    tangent = torch.randn_like(q)
    moved = (expected * tangent).sum((-3, -2, -1))
    torch.testing.assert_close(torch.func.jvp(lambda q: run(q, k, v), (q,), (tangent,))[1], moved)
    with forward_ad.dual_level():
        dual = run(forward_ad.make_dual(q, tangent), k, v)
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, moved)

    leaf = q.clone().requires_grad_()
    z = run(leaf, k, v, "reference").pow(3).sum()
    (slope,) = torch.autograd.grad(z, leaf, create_graph=True)
    (curvature,) = torch.autograd.grad((slope * tangent).sum(), leaf)
    hessian = torch.func.hessian(value)(q)
    torch.testing.assert_close((hessian * tangent).sum((-3, -2, -1)), curvature)
    twice = torch.func.grad(lambda q: (torch.func.grad(value)(q) * tangent).sum())(q)
    torch.testing.assert_close(twice, curvature)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("energy", "normalize"), [pair for pair in SAMPLE if pair[0] not in ("modified", "biased")])
def test_vmap(energy: str, normalize: str, backend: str) -> None:
    options = problem(energy, normalize)
    q, k, v = inputs((4,), 5, 7, 4, 2)

    def run(q, k, v):
        return attend(q, k, v, mask=r.causal(1), backend=backend, **options)

    together = run(q, k, v)
    torch.testing.assert_close(torch.vmap(run)(q, k, v), together)  # over the batch
    torch.testing.assert_close(torch.vmap(run, (0, None, None))(q, k[0], v[0]), run(q, k[:1], v[:1]))
    each = torch.vmap(lambda q: attend(q[None], k[0], v[0], backend=backend, **options)[0])(q[0])  # over queries
    torch.testing.assert_close(each, attend(q[0], k[0], v[0], backend=backend, **options))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [lambda: r.General(4, 4), lambda: r.Additive(4, 4, 3), lambda: r.Concat(4, 4, 3)])
def test_vmap_and_gradients_over_parameters(make, backend: str) -> None:
    """An ensemble: the same inputs under several parameters, each with a gradient of its own."""
    q, k, v = inputs((2,), 5, 7, 4, 2)
    members = [make().double() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(members)

    def value(parameters):
        def energy(q, k):
            return torch.func.functional_call(members[0], parameters, (q, k))

        return attend(q, k, v, energy=energy, backend=backend).square().sum()

    gradients = torch.vmap(torch.func.grad(value))(parameters)
    for at, member in enumerate(members):
        expected = torch.autograd.grad(
            attend(q, k, v, energy=member, backend="reference").square().sum(), list(member.parameters())
        )
        torch.testing.assert_close([gradients[name][at] for name, _ in member.named_parameters()], list(expected))


@pytest.mark.parametrize("energy", [r.Gaussian(0.5), r.InverseDistance()])
def test_distances_of_equal_and_of_near_points(energy) -> None:
    """Gradients are finite at equal points, and near points keep the digits that |a|² + |b|² − 2ab loses."""
    normalize = r.Softmax() if isinstance(energy, r.Gaussian) else r.Proportional()
    k = 1e3 + torch.randn(1, 6, 3, dtype=torch.float64)
    q = k[:, :4] + 1e-4 * torch.randn(1, 4, 3, dtype=torch.float64)
    q[0, 0] = k[0, 0]
    v = torch.randn(1, 6, 2, dtype=torch.float64)

    def run(q, backend):
        return attend(q, k.to(q.dtype), v.to(q.dtype), energy=energy, normalize=normalize, backend=backend)

    expected = torch.func.jacrev(lambda q: run(q, "reference"))(q)
    assert expected.isfinite().all()
    for backend in ("auto", "reference"):
        torch.testing.assert_close(torch.func.jacfwd(lambda q, b=backend: run(q, b))(q), expected)
        jacobian = torch.autograd.functional.jacobian(lambda q, b=backend: run(q, b), q)
        torch.testing.assert_close(jacobian, expected)
        leaf = q.clone().requires_grad_()
        (slope,) = torch.autograd.grad(run(leaf, backend).square().sum(), leaf, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), leaf)
        assert curvature.isfinite().all()


def test_a_learned_sink_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    q, k, v = inputs((2, 3), grad=True)
    sink = torch.randn(3, dtype=torch.float64, requires_grad=True)
    options = {"normalize": r.Softmax(sink=sink), "mask": r.causal()}
    expected = second(q, k, v, [sink], backend="reference", **options)
    for backend in ("auto", "fused"):
        torch.testing.assert_close(second(q, k, v, [sink], backend=backend, **options), expected)


class _Compiled(torch.autograd.Function):
    """Attention as torch.compile makes it on a GPU: its backward is not differentiated, and runs once."""

    @staticmethod
    def forward(ctx, q, k, v, scale):
        ctx.scale, ctx.used = scale, False
        ctx.save_for_backward(q, k, v)
        e = (q * scale) @ k.mT
        return torch.softmax(e, -1) @ v, torch.logsumexp(e, -1)

    @staticmethod
    def backward(ctx, grad, grad_lse):
        if torch.is_grad_enabled() or ctx.used:
            raise RuntimeError("torch.compile with aot_autograd does not currently support double backward")
        ctx.used = True
        with torch.enable_grad():
            q, k, v = own = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            e = (q * ctx.scale) @ k.mT
            results = torch.softmax(e, -1) @ v, torch.logsumexp(e, -1)
        return *torch.autograd.grad(results, own, (grad, grad_lse)), None


def _compiled_kernel(device: str):
    """The same with FlexAttention's signature."""

    def kernel(q, k, v, *, scale, **options):
        out, lse = _Compiled.apply(q, k, v, scale)
        return out, SimpleNamespace(lse=lse)

    return kernel


@pytest.fixture
def compiled_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_kernel", _compiled_kernel)
    monkeypatch.setattr(flex, "_needs_gradient", lambda request: False)


@pytest.mark.usefixtures("compiled_flex")
def test_a_compiled_kernel_has_second_derivatives() -> None:
    q, k, v = inputs((2, 3), grad=True)
    sink = torch.rand(3, dtype=torch.float64, requires_grad=True)
    for normalize, leaves in ((r.Softmax(), []), (r.Softmax(sink=sink), [sink])):
        options = {"normalize": normalize}
        expected = second(q, k, v, leaves, backend="reference", **options)
        torch.testing.assert_close(second(q, k, v, leaves, backend="flex", **options), expected)


@pytest.mark.usefixtures("compiled_flex")
def test_a_compiled_kernel_is_walked_as_often_as_asked() -> None:
    q, k, v = inputs((2, 3), grad=True)
    z, w = attend(q, k, v, backend="flex", weights=True)
    first = torch.autograd.grad(z.square().sum(), (q, k, v), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(z.square().sum(), (q, k, v), retain_graph=True), first)
    (only,) = torch.autograd.grad(z.square().sum(), q, retain_graph=True)
    torch.testing.assert_close(only, first[0])
    torch.testing.assert_close(w.dense(), attend(q, k, v, backend="reference", weights=True)[1].dense())
    with torch.no_grad():
        k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(z.square().sum(), (q, k, v))


@pytest.mark.parametrize("energy", ["scaled", "gaussian", "additive", "own function"])
def test_batched_cotangents_over_several_blocks(energy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    q, k, v = inputs((2, 3), grad=True)
    cotangents, form = torch.randn(4, 2, 3, 5, v.shape[-1], dtype=torch.float64), energies()[energy]

    def gradients(backend: str):
        z = attend(q, k, v, energy=form, normalize=r.Sparsemax(), backend=backend, mask=r.causal(1))
        return torch.autograd.grad(z, (q, k, v), cotangents, is_grads_batched=True)

    torch.testing.assert_close(gradients("fused"), gradients("reference"))
