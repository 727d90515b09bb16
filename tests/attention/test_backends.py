"""Every backend against the reference, over every energy × normalizer × mask; and how one is chosen."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs, masks, within_budget

BACKENDS = ["auto", "sdpa", "flex", "fused"]
EVERY = ["reference", "auto", "sdpa", "flex", "fused"]


def _pairs(names: list[str], backends: list[str]) -> list[tuple[str, str]]:
    """Energies with the backends that can do them: SDPA and FlexAttention have dot products only."""
    return [(name, b) for name in names for b in backends if name == "scaled" or b not in ("sdpa", "flex")]


def _agree(energy, normalize, mask, backend: str) -> bool:
    """Compare outputs, gradients and states; False where the backend says it cannot do the request."""
    grad = backend != "flex"  # on CPU it has no backward
    q, k, v = inputs(grad=grad)
    expected, truth = attend(q, k, v, energy=energy, normalize=normalize, mask=mask, backend="reference", weights=True)
    try:
        z, w = attend(q, k, v, energy=energy, normalize=normalize, mask=mask, backend=backend, weights=True)
    except ValueError as error:
        if f'backend="{backend}" cannot do this' in str(error):
            return False
        raise
    torch.testing.assert_close(z, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(w.tile(slice(None), slice(None)), truth.dense(), rtol=1e-9, atol=1e-10)
    if grad:
        leaves = [q, k, v, *(energy.parameters() if isinstance(energy, torch.nn.Module) else [])]
        direction = torch.randn_like(z)
        pairs = (torch.autograd.grad(o, leaves, direction, allow_unused=True) for o in (z, expected))
        for a, b in zip(*pairs, strict=True):
            zero = torch.zeros(())
            torch.testing.assert_close(zero if a is None else a, (zero if a is None else 0 * a) if b is None else b)
    return True


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", energies())
def test_energies_and_normalizers(name: str, backend: str) -> None:
    done = [_agree(energies()[name], normalize, r.causal(1), backend) for normalize in NORMALIZERS.values()]
    assert all(done) or backend in ("sdpa", "flex")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["scaled", "biased", "modified", "additive", "own function"])
def test_energies_and_masks(name: str, backend: str) -> None:
    done = {label: _agree(energies()[name], r.Softmax(), mask, backend) for label, mask in masks().items()}
    possible = {
        "sdpa": name in ("scaled", "biased"),
        "flex": name in ("scaled", "biased", "modified"),
    }.get(backend, True)
    assert set(done.values()) == {possible}, done


@pytest.mark.parametrize("name", POSITIVE)
def test_the_look_up_family(name: str) -> None:
    for mask in masks().values():
        assert _agree(POSITIVE[name], r.Proportional(), mask, "fused")


@pytest.mark.parametrize("tile", [1, 100, 10_000])
def test_blocks_of_any_size(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk over blocks, forced through every shape of block on small inputs."""
    from regard.attention import statistics
    from regard.attention.backends import fused as blocked
    from regard.attention.kernels import additive_cpu as additive

    monkeypatch.setattr(blocked, "BLOCK", tile)
    monkeypatch.setattr(statistics, "BLOCK", tile)
    monkeypatch.setattr(additive, "TILE", tile)
    for name in ("scaled", "additive", "modified", "own function"):
        for label in ("none", "causal and padding", "dense", "documents"):
            assert _agree(energies()[name], r.Softmax(), masks()[label], "fused")
            assert _agree(energies()[name], r.Entmax(1.5), masks()[label], "fused")


@pytest.mark.parametrize(("name", "backend"), _pairs(["scaled", "additive"], EVERY))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fully_masked_rows_give_zeros_and_zero_gradients(name: str, backend: str, dtype: torch.dtype) -> None:
    energy = energies()[name]
    if isinstance(energy, torch.nn.Module):
        energy = energy.to(dtype)
    for mask in (r.padding([0, 7]), r.dense(torch.arange(5)[:, None].expand(5, 7) > 1)):
        q, k, v = inputs(dtype=dtype, grad=backend != "flex")
        z = attend(q, k, v, energy=energy, mask=mask, backend=backend)
        seen = mask.dense((2, 3), 5, 7, q.device).expand(2, 3, 5, 7).any(-1)
        assert (z[~seen] == 0).all()
        assert torch.isfinite(z).all()
        if q.requires_grad:
            z.sum().backward()
            assert (q.grad[~seen] == 0).all()
            assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize(("name", "backend"), _pairs(["scaled", "additive", "gaussian"], EVERY))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_poisoned_query_reaches_only_its_own_row(name: str, backend: str, bad: float) -> None:
    (q, k, v), energy = inputs(), energies()[name]
    clean = attend(q, k, v, energy=energy, backend=backend)
    q[0, 1, 2, 0] = bad
    dirty = attend(q, k, v, energy=energy, backend=backend)
    others = torch.ones(2, 3, 5, dtype=torch.bool)
    others[0, 1, 2] = False
    torch.testing.assert_close(dirty[others], clean[others])
    assert torch.isfinite(dirty[others]).all()


@pytest.mark.parametrize("backend", EVERY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_huge_logits_in_half_precision(backend: str, dtype: torch.dtype) -> None:
    q, k, v = inputs((1, 1), 8, 9, 4, 4, dtype=torch.float64)
    # Scaled so that |q·k| reaches about 1e4.
    q, k, v = (100 * q / q.abs().max()).to(dtype), (50 * k / k.abs().max()).to(dtype), v.to(dtype)
    assert (q.double() @ k.double().mT).abs().max() > 3e3
    z = attend(q, k, v, energy=r.Dot(), backend=backend)
    truth = attend(q.double(), k.double(), v.double(), energy=r.Dot(), backend="reference")
    plain = torch.softmax(q @ k.mT, -1) @ v
    within_budget(z, plain, truth, dtype)


@pytest.mark.parametrize("size", [1.0, 30.0, 60.0, 1e4])
@pytest.mark.parametrize("opposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh_is_exact_at_any_magnitude(size: float, opposed: bool, dtype: torch.dtype) -> None:
    """tanh(a + b) through exponentials, where a and b are huge, alone and against each other."""
    from regard.attention.kernels.additive_cpu import energies as fast

    a = torch.randn(2, 5, 8, dtype=torch.float64) * size
    b = torch.randn(2, 6, 8, dtype=torch.float64) + (-a[:, :1] if opposed else 0)
    a, b, w = a.to(dtype), b.to(dtype), torch.randn(8, dtype=dtype)
    direct = torch.tanh(a[:, :, None] + b[:, None]) @ w
    truth = torch.tanh(a.double()[:, :, None] + b.double()[:, None]) @ w.double()
    within_budget(fast(a, b, w), direct, truth, dtype)
    within_budget(fast(b, a, w).mT, direct, truth, dtype)


def test_auto_takes_the_fastest_and_says_why() -> None:
    q, k, v = inputs()
    assert r.explain(q, k, v).backend == "sdpa"
    assert r.explain(q, k, v, energy=r.Cosine(), mask=r.window(3)).backend == "sdpa"
    small = r.explain(q, k, v, energy=r.Additive(4, 4, 8).double())
    assert small.backend == "reference"
    assert "small" in small.why
    step = torch.randn(32, 1, 256), torch.randn(32, 50, 256), torch.randn(32, 50, 256)
    assert r.explain(*step, energy=r.Additive(256, 256, 256)).backend == "reference"
    q, k, v = inputs((2,), 100, 100, 64, 64)
    plan = r.explain(q, k, v, energy=r.Additive(64, 64, 64).double())
    assert plan.backend == "fused"
    assert "additive kernel" in plan.why
    assert plan.others["sdpa"] == "cannot: the energy is not a dot product"
    assert plan.others["reference"].startswith("can")
    assert str(plan).splitlines()[0].startswith("→ fused")
    capped = r.explain(q, k, v, energy=r.Modified(r.Dot(), r.SoftCap(1)))
    assert capped.backend == "fused"
    assert "SoftCap" in capped.others["sdpa"]


def test_a_backend_by_name_never_falls_back() -> None:
    q, k, v = inputs(grad=True)
    with pytest.raises(ValueError, match=r'backend="sdpa" cannot do this: .*not Sparsemax.*would use "fused"'):
        attend(q, k, v, normalize=r.Sparsemax(), backend="sdpa")
    with pytest.raises(ValueError, match="no backward"):
        attend(q, k, v, backend="flex")
    with pytest.raises(ValueError, match="no dropout"):
        attend(q.detach(), k.detach(), v.detach(), dropout=0.1, backend="flex")
    with pytest.raises(ValueError, match="expected one of auto, reference, sdpa, flex, fused"):
        attend(q, k, v, backend="cudnn")


@pytest.mark.parametrize(
    ("name", "backend"), _pairs(["scaled", "additive", "own function"], ["reference", "sdpa", "fused"])
)
def test_dropout(name: str, backend: str) -> None:
    """Right on average, repeatable from the seed, and the gradient belongs to the weights that were kept."""
    energy = energies()[name]
    q, k, v = inputs((1, 1), 3, 6, grad=True)
    v = torch.eye(6, dtype=torch.float64)[None, None].requires_grad_()  # the output is then the weights themselves
    plain = attend(q, k, v, energy=energy)
    torch.manual_seed(3)
    z = attend(q.expand(4000, 1, 3, 4), k, v, energy=energy, dropout=0.25, backend=backend)
    dropped = (z == 0).double().mean()
    assert abs(dropped - 0.25) < 0.01
    torch.testing.assert_close(z.mean(0, keepdim=True), plain, rtol=0, atol=0.03)
    kept = torch.where(z == 0, 0, 1 / 0.75)
    torch.testing.assert_close(z, plain * kept)
    torch.manual_seed(3)
    assert torch.equal(z, attend(q.expand(4000, 1, 3, 4), k, v, energy=energy, dropout=0.25, backend=backend))
    direction = torch.randn_like(z)
    mine = torch.autograd.grad(z, (q, k), direction)
    again = attend(q, k, v, energy=energy, backend="reference") * kept
    for a, b in zip(mine, torch.autograd.grad(again, (q, k), direction), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_bias_keeps_its_digits_beside_narrow_queries(kind: torch.dtype) -> None:
    """SDPA is as exact as with a mask of float32, rows of weights sum to one, and −3e38 everywhere is no empty row."""
    q, k, v = (torch.randn(1, 2, 40, 16).to(kind) for _ in range(3))
    bias = torch.randn(2, 40, 40) * 8
    bias[:, 0] = torch.finfo(torch.float32).min
    energy = r.Modified(r.ScaledDot(), r.Bias(bias))
    z, w = r.attend(q, k, v, energy=energy, weights=True, backend="sdpa")
    exact = r.Modified(r.ScaledDot(), r.Bias(bias.double()))
    want = r.attend(q.double(), k.double(), v.double(), energy=exact, backend="reference")
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias[None])
    theirs_off, ours_off = ((x.double() - want)[..., 1:, :].abs().max() for x in (theirs, z))
    assert ours_off <= 2 * theirs_off + torch.finfo(kind).eps
    torch.testing.assert_close(z[..., 0, :].double(), v.double().mean(-2), rtol=0.01, atol=0.01)
    rows = w.tile(slice(0, 40), slice(0, 40)).sum(-1)[..., 1:]
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-3)


def test_what_is_finite_stays_finite_in_a_narrow_bias() -> None:
    from regard.attention.backends.sdpa import _narrow

    result = _narrow(torch.tensor([-1e9, -torch.inf, 3.0]), torch.float16)
    assert result.tolist() == [-65504.0, -torch.inf, 3.0]


def test_flex_takes_one_tensor_as_queries_keys_and_values_after_functions_that_hold_tensors() -> None:
    """PyTorch 2.13 fails if a tensor occurs twice in a call after one with other functions was compiled."""
    x, (a, b) = torch.randn(1, 2, 6, 4, dtype=torch.float64), torch.randn(2, 6, 6, dtype=torch.float64)
    triangle = torch.ones(6, 6, dtype=torch.bool).tril()
    biased = r.Modified(r.ScaledDot(), r.Bias(a), r.Bias(b))
    twice = r.Modified(r.ScaledDot(), r.Bias(a), r.Bias(a))
    calls: list[tuple[torch.Tensor, dict]] = [
        (x.clone(), {"energy": biased, "mask": triangle}),
        (x, {}),
        (x, {"energy": twice}),
        (x, {"energy": twice, "mask": triangle}),
        (x[0, 0], {"mask": r.causal()}),
        (a, {"energy": twice, "mask": r.dense(triangle) & r.dense(triangle)}),
    ]
    for gradients in (False, True):
        for tensor, options in calls:
            with torch.set_grad_enabled(gradients):
                out = attend(tensor, tensor, tensor, **options, backend="flex")
            torch.testing.assert_close(out, attend(tensor, tensor, tensor, **options, backend="reference"))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_gradients_under_autocast_on_a_cpu_are_computed_in_float32(kind: torch.dtype) -> None:
    """PyTorch's kernel is slow backward in half precision there. What is rounded are the inputs and the results."""
    torch.manual_seed(0)
    halves = [torch.randn(2, 3, 65, 16).to(kind).requires_grad_() for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in halves]
    with torch.autocast("cpu", kind):
        z = attend(*halves, mask=r.causal(), backend="sdpa")
        gradients = torch.autograd.grad(z.float().sum(), halves)
    expected = attend(*exact, mask=r.causal(), backend="reference")
    assert z.dtype == kind
    eps = torch.finfo(kind).eps
    assert (z.double() - expected).abs().max() <= eps * expected.abs().max()
    for got, want in zip(gradients, torch.autograd.grad(expected.sum(), exact), strict=True):
        assert got.dtype == kind
        assert (got.double() - want).abs().max() <= eps * want.abs().max()
