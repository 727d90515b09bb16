"""Normalizers given as functions, against the same formula as a part of ours or written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard as r
from regard import attend
from regard.attention.backends import fused
from regard.viewer.tiles import Tile, TilePyramid
from tests.support.attention_cases import NORMALIZERS, city_block, energies, inputs, masks, pooled_cells


def own_softmax(e):
    return torch.softmax(e, dim=-1)


def masked_softmax(e, mask):
    x = e.exp() * mask
    return x / x.sum(-1, keepdim=True)


def squares(e, mask):
    x = e.square() * mask
    return x / x.sum(-1, keepdim=True).clamp_min(1e-30)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, e):
        return torch.softmax(e * self.scale, dim=-1)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("function", [own_softmax, masked_softmax], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask", masks())
def test_a_softmax_of_ones_own_is_the_softmax(mask: str, function, backend: str, monkeypatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    rule = masks()[mask]
    z, w = attend(q, k, v, normalize=function, mask=rule, backend=backend, weights=True)
    truth, expected = attend(q, k, v, mask=rule, backend="reference", weights=True)
    torch.testing.assert_close(z, truth)
    torch.testing.assert_close(w.dense(), expected.dense())
    direction = torch.randn_like(z)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), direction) for x in (z, truth))
    torch.testing.assert_close(ours, theirs)


def test_every_answer_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.statistics.BLOCK", 900)
    torch.manual_seed(0)
    q, k, v = inputs((2,), 40, 90)
    mask = r.causal(3)
    z, w = attend(q, k, v, energy=city_block, normalize=squares, mask=mask, weights=True)
    e = city_block(q, k) * mask.dense((2,), 40, 90, q.device)
    dense = e.square() / e.square().sum(-1, keepdim=True)
    torch.testing.assert_close(z, dense @ v)
    torch.testing.assert_close(w.dense(), dense)
    torch.testing.assert_close(w.tile(slice(5, 20), [70, 2, 3]), dense[:, 5:20][..., [70, 2, 3]])
    torch.testing.assert_close(w[1].tile(7, slice(2, 6)), dense[1, 7:8, 2:6])
    torch.testing.assert_close(w.entropy(), -torch.xlogy(dense, dense).sum(-1))
    torch.testing.assert_close(w.top(4).values, dense.topk(4, -1).values)
    torch.testing.assert_close(w.received(), dense.sum(-2))
    torch.testing.assert_close(w.offset(2), dense.diagonal(2, 1, 2))
    assert w.map((3, 3)).amax((-2, -1)).allclose(dense.amax((-2, -1)))
    assert float(w.fidelity(v, z).max()) < 1e-12


def test_a_learned_parameter_gets_its_gradient_and_its_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)
    q, k, v = inputs(grad=True)
    module = Temperature()
    for normalize in (module, lambda e: module(e)):
        z = attend(q, k, v, normalize=normalize, mask=r.causal())
        truth = attend(q * module.scale, k, v, mask=r.causal(), backend="reference")
        torch.testing.assert_close(z, truth)
        ours, theirs = (torch.autograd.grad(x.sum(), (q, module.scale)) for x in (z, truth))
        torch.testing.assert_close(ours, theirs)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for normalize in (module, lambda e: torch.softmax(e * scale, -1)):
        _, w = attend(q, k, v, normalize=normalize, weights=True)
        w.entropy()
        with torch.no_grad():
            module.scale.add_(1)
            scale.add_(1)
        with pytest.raises(RuntimeError, match="changed in place"):
            w.entropy()


class Attention(nn.Module):
    def forward(self, q, k, v):
        return attend(q, k, v, normalize=squares, mask=r.causal())


def test_watch_and_viewer_show_it_and_a_trace_refuses_it(tmp_path) -> None:
    torch.manual_seed(0)
    q, k, v = inputs(queries=30, keys=30, dtype=torch.float32)
    with r.watch(model := Attention()) as seen:
        model(q, k, v)
    call = seen[0]
    assert call.fidelity().faithful
    w, dense = call.head(1), call.weights.dense()[0, 1]
    tile = TilePyramid(w).tile(Tile(0, 0, 30, 30, 30, 30), "max")
    torch.testing.assert_close(tile, dense)
    with pytest.raises(ValueError, match=r"FunctionNormalizer has function.*a trace cannot hold it"):
        seen.save(tmp_path / "trace")


def test_generated_steps_with_another_function_are_another_call() -> None:
    q, k, v = inputs((1, 2), 4, 4, dtype=torch.float32)

    class Steps(nn.Module):
        def forward(self, normalize, n):
            return attend(q[..., n - 1 : n, :], k[..., :n, :], v[..., :n, :], normalize=normalize)

    model = Steps()
    for functions, calls in (
        ((squares, squares), 1),
        ((squares, masked_softmax), 2),
        ((r.Softmax(), r.Softmax(2.0)), 2),
    ):
        with r.watch(model) as seen:
            for n, normalize in zip((3, 4), functions, strict=True):
                model(normalize, n)
        assert len(seen.calls) == calls


@pytest.mark.parametrize(
    ("normalize", "error", "words"),
    [
        (lambda e: e.softmax(-2), ValueError, r"must work along the last dimension, the keys, alone \(dim=-1\)"),
        (lambda e: e.sum(-1), ValueError, r"normalize gave \[.*\]; expected weights of the energies' shape"),
        (lambda e: None, ValueError, "normalize gave NoneType"),
        (lambda: 1, TypeError, r"function <lambda>.*function of \(energies\) or \(energies, mask\)"),
        (lambda a, b, c: a, TypeError, r"function of \(energies\) or \(energies, mask\)"),
        (r.Sparsemax, TypeError, "the class Sparsemax, not an instance of it"),
        (torch.softmax, TypeError, "expected a normalizer such as"),
    ],
)
def test_wrong_functions(normalize, error, words: str) -> None:
    for backend in ("auto", "reference"):
        with pytest.raises(error, match=words):
            attend(*inputs(), normalize=normalize, backend=backend)


def test_a_second_argument_with_a_default_is_the_mask_only_by_that_name() -> None:
    q, k, v = (torch.randn(5, 4) for _ in range(3))
    expected = attend(q, k, v)
    for function in (
        lambda e, temperature=1.0: (e / temperature).softmax(-1),
        lambda e, dim=-1: e.softmax(dim),
        lambda e, mask=None: e.masked_fill(~mask, -1e9).softmax(-1),
    ):
        torch.testing.assert_close(attend(q, k, v, normalize=function), expected)


def test_proportional_names_the_energy_that_was_given() -> None:
    with pytest.raises(ValueError, match="got -4;"):
        r.Proportional()(torch.tensor([[8.0, -4.0]]))


def test_a_module_is_called_once_per_block_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "BLOCK", 16)
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, e: torch.Tensor) -> torch.Tensor:
            calls.append(e.shape)
            return torch.softmax(e, -1)

    q = torch.randn(2, 8, 4)
    with torch.no_grad():
        r.attend(q, q, q, normalize=Counted(), backend="fused")
    assert len(calls) == 3 + 8  # two rows together, one of them twice alone; then 8 blocks of two rows


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_one_query_that_sees_some_keys(backend) -> None:
    q, k, v = torch.randn(3), torch.randn(7, 3), torch.randn(7, 2)
    mask = (torch.arange(7) < 6)[None]
    z = r.attend(
        q, k, v, normalize=lambda e, seen: e.masked_fill(~seen, -torch.inf).softmax(-1), mask=mask, backend=backend
    )
    torch.testing.assert_close(z, r.attend(q, k[:6], v[:6], backend="reference"))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (r.Sparsemax(), lambda entmax, e: entmax.sparsemax(e)),
        (r.Entmax(1.5), lambda entmax, e: entmax.entmax15(e)),
        (r.Entmax(1.3), lambda entmax, e: entmax.entmax_bisect(e, alpha=1.3, n_iter=60)),
        (r.Entmax(2.5), lambda entmax, e: entmax.entmax_bisect(e, alpha=2.5, n_iter=60)),
    ],
    ids=["sparsemax", "1.5", "1.3", "2.5"],
)
def test_equals_the_entmax_package_with_gradients(ours, theirs) -> None:
    entmax = pytest.importorskip("entmax")
    e = (3 * torch.randn(20, 9, dtype=torch.float64)).requires_grad_()
    mine, other = ours(e), theirs(entmax, e)
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
    direction = torch.randn_like(mine)
    (a,), (b,) = (torch.autograd.grad(w, e, direction) for w in (mine, other))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_state_gives_the_same_weights_point_by_point(name: str) -> None:
    normalize = NORMALIZERS[name]
    e = 3 * torch.randn(4, 6, 11, dtype=torch.float64)
    e[0, 0] = -torch.inf  # an empty row
    e[1, 2, 5:] = -torch.inf
    w, state = normalize(e), normalize.state(e)
    some = torch.tensor([7, 0, 3])
    torch.testing.assert_close(normalize.weigh(e[..., some], state[..., None], some), w[..., some])
    torch.testing.assert_close(w.sum(-1), torch.where((e == -torch.inf).all(-1), 0.0, 1.0).double())


def test_proportional_divides_by_the_sum() -> None:
    e = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert r.Proportional()(e).tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_entmax_goes_from_softmax_to_sparsemax() -> None:
    e = torch.randn(8, 10, dtype=torch.float64)
    torch.testing.assert_close(r.Entmax(1.01)(e), e.softmax(-1), rtol=0, atol=0.02)
    torch.testing.assert_close(r.Entmax(2.0)(e), r.Sparsemax()(e))


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 3.0])
def test_a_learned_alpha(alpha: float) -> None:
    """First and second derivatives of Entmax by its alpha, beside finite differences and in forward mode."""
    e = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    learned = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)

    def weights(e, alpha):
        return r.Entmax(alpha)(e)

    assert torch.autograd.gradcheck(weights, (e, learned), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(weights, (e, learned))


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("queries", [6, 600])
def test_a_learned_alpha_through_attend(queries: int, backend: str) -> None:
    q, k, v = inputs((1,), queries, 600)

    def value(alpha):
        return (attend(q, k, v, normalize=r.Entmax(alpha), backend=backend) ** 2).sum()

    alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(alpha), alpha)
    numeric = (value(1.5 + 1e-5) - value(1.5 - 1e-5)) / 2e-5
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-7)


def test_weights_keep_the_alpha_of_the_call() -> None:
    q, k, v = inputs()
    alpha = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    _, weights = attend(q, k, v, normalize=r.Entmax(alpha), weights=True)
    before = weights.tile(slice(None), slice(None))
    torch.testing.assert_close(weights.dense(), before)
    with torch.no_grad():
        alpha.fill_(2.0)
    torch.testing.assert_close(weights.tile(slice(None), slice(None)), before)


def test_alpha_is_one_number() -> None:
    with pytest.raises(TypeError, match="one number"):
        r.Entmax(torch.tensor([1.5, 2.0]))
    with pytest.raises(ValueError, match=r"alpha ≥ 1\.01"):
        r.Entmax(torch.tensor(1.0))


def test_hard_takes_the_first_best() -> None:
    e = torch.tensor([[1.0, 5.0, 5.0], [2.0, 0.0, 1.0]])
    assert r.Hard()(e).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_hard_samples_in_training_only() -> None:
    hard = r.Hard("reinforce")
    e = torch.tensor([0.0, 1.0, 2.0]).expand(40_000, 3)
    frequency = hard(e).mean(0)
    torch.testing.assert_close(frequency, e[0].softmax(-1), rtol=0, atol=0.01)  # 4 standard errors
    hard.eval()
    assert hard(e).mean(0).tolist() == [0, 0, 1]
    assert r.Hard()(e).mean(0).tolist() == [0, 0, 1]


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_straight_through_has_the_gradient_of_the_softmax(backend: str) -> None:
    q, k, v = inputs(grad=True)
    torch.manual_seed(7)
    z, w = attend(q, k, v, normalize=r.Hard("straight-through"), backend=backend, weights=True)
    torch.testing.assert_close(w.dense() @ v, z)  # the sample that was used is the sample that is shown
    assert set(w.dense().unique().tolist()) == {0.0, 1.0}
    direction = torch.randn_like(z)
    hard = torch.autograd.grad(z, (q, k), direction)
    soft = torch.autograd.grad(attend(q, k, v), (q, k), direction)
    for a, b in zip(hard, soft, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_reinforce_is_unbiased(backend: str) -> None:
    """E[reward · ∇ log p(sample)] is the gradient of the expected reward, which enumeration gives exactly."""
    count = 60_000
    q, k = torch.randn(1, 2, dtype=torch.float64, requires_grad=True), torch.randn(3, 2, dtype=torch.float64)
    v = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    expected_reward = (r.Softmax()(r.ScaledDot()(q, k)) @ v.square()).sum()
    (exact,) = torch.autograd.grad(expected_reward, q)
    z, w = attend(q.expand(count, 1, 2), k, v, normalize=r.Hard("reinforce"), backend=backend, weights=True)
    reward = z.square().squeeze(-1).detach()
    assert not z.requires_grad or torch.autograd.grad(z.sum(), q, retain_graph=True, allow_unused=True)[0] is None
    (estimate,) = torch.autograd.grad((reward * w.log_prob()).mean(), q)
    torch.testing.assert_close(estimate, exact, rtol=0, atol=0.03)


def test_log_prob_needs_a_sampler() -> None:
    q, k, v = inputs()
    with pytest.raises(TypeError, match="does not sample"):
        attend(q, k, v, weights=True)[1].log_prob()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: r.Softmax(0), "temperature must be > 0, got 0; Hard"),
        (lambda: r.Entmax(1.0), "alpha ≥ 1.01"),
        (lambda: r.Entmax(1.001), "alpha ≥ 1.01"),
        (lambda: r.Hard("gumbel"), "straight-through"),
        (lambda: r.Gaussian(0), "sigma must be > 0"),
        (lambda: r.SoftCap(-1), "cap must be > 0"),
        (lambda: r.Alibi(0), "at least one head"),
        (lambda: r.window(0), "size ≥ 1"),
    ],
)
def test_settings_out_of_range(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    "normalize", [r.Entmax(3.0), r.Entmax(1.1), r.Sparsemax(), r.Softmax(0.1), r.Softmax()], ids=repr
)
def test_energies_at_the_ends_of_float32(normalize: r.Normalizer) -> None:
    """2 · 3e38 and 3e38 / 0.1 overflow: rows are moved before they are scaled."""
    e = torch.tensor([[3e38, -3e38, 0.0], [3e38, 3e38, -3e38], [-3e38, -3e38, -3e38]])
    third = 1 / 3
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [third, third, third]])
    torch.testing.assert_close(normalize(e), expected)


def test_proportional_at_the_ends_of_float32() -> None:
    e = torch.tensor([[3e38, 3e38, 0.0], [1e-45, 1e-45, 0.0], [2.0, 6.0, 0.0]])
    assert r.Proportional()(e).tolist() == [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]


@pytest.mark.parametrize("normalize", [r.Entmax(3.0), r.Entmax(1.5), r.Sparsemax(), r.Softmax()], ids=repr)
def test_many_keys_in_half_precision(normalize: r.Normalizer) -> None:
    """float16 ends at 65,504, before the rank of the last key; its weight is 1.4e-5, below what it rounds to 1e-2."""
    w = normalize(torch.zeros(1, 70_000, dtype=torch.float16))
    assert w.dtype == torch.float16
    torch.testing.assert_close(w.double(), torch.full((1, 70_000), 1 / 70_000).double(), rtol=5e-3, atol=0)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 3.0])
def test_the_threshold_of_many_keys_has_all_its_digits(alpha: float) -> None:
    """Weights by way of the row state are not divided by their sum."""
    normalize, e = r.Entmax(alpha), 1e-4 * torch.randn(2, 20_000)
    w = normalize.weigh(e, normalize.state(e)[..., None], torch.arange(20_000))
    torch.testing.assert_close(w.double(), normalize(e.double()), rtol=1e-4, atol=1e-9)


def sigmoid(e, seen):
    return (1 / (1 + (1.5 - e).exp())) * seen


def softpick(e, seen):
    x = (e.exp() - 1) * seen
    total = x.abs().sum(-1, keepdim=True)
    return x.relu() / torch.where(total > 0, total, 1)


def stick_breaking(e, seen):
    share = torch.sigmoid(e) * seen
    w, left = torch.zeros_like(e), torch.ones_like(e[..., 0])
    for j in reversed(range(e.shape[-1])):
        w[..., j] = share[..., j] * left
        left = left * (1 - share[..., j])
    return w


WITHOUT_SUM = [(r.Sigmoid(-1.5), sigmoid), (r.Softpick(), softpick), (r.StickBreaking(), stick_breaking)]
"""Normalizers whose rows do not sum to one, and their formulas."""


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize(("normalize", "formula"), WITHOUT_SUM, ids=lambda x: getattr(x, "__name__", ""))
def test_rows_that_do_not_sum_to_one(normalize, formula, mask: str, backend: str, monkeypatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    rule = masks()[mask]
    seen = torch.ones(5, 7, dtype=torch.bool) if rule is None else rule.dense((2, 3), 5, 7, q.device)
    z, w = attend(q, k, v, energy=r.Dot(), normalize=normalize, mask=rule, backend=backend, weights=True)
    truth = formula(q @ k.mT, seen)
    torch.testing.assert_close(z, truth @ v)
    torch.testing.assert_close(w.dense(), truth)
    torch.testing.assert_close(w.tile(slice(1, 4), [6, 0, 2]), truth[..., 1:4, :][..., [6, 0, 2]])
    torch.testing.assert_close(w.received(), truth.sum(-2))
    torch.testing.assert_close(w.entropy(), -torch.xlogy(truth, truth).sum(-1))
    torch.testing.assert_close(w[1, 2].rows([4, 0]).top(2).values, truth[1, 2, [4, 0]].topk(2).values)
    direction = torch.randn_like(z)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), direction) for x in (z, truth @ v))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("normalize", "formula"), WITHOUT_SUM, ids=lambda x: getattr(x, "__name__", ""))
def test_they_are_seen_saved_and_exact_for_large_energies(normalize, formula, tmp_path) -> None:
    class Model(nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, normalize=normalize, mask=r.causal(-1))

    q, k, v = (12 * x for x in inputs(dtype=torch.float32))
    with r.watch(model := Model()) as seen:
        model(q, k, v)
    assert seen[0].fidelity().faithful
    seen.save(tmp_path / "trace")
    e = q.double() @ k.double().mT / 2
    truth = formula(e, r.causal(-1).dense((2, 3), 5, 7, q.device))
    for w in (seen[0].weights, r.load_trace(tmp_path / "trace")[0].weights):
        assert w.normalize == normalize
        torch.testing.assert_close(w.tile(slice(None), slice(2, 5)).double(), truth[..., 2:5], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("mask", masks())
def test_is_the_sum_written_out(mask: str, backend: str) -> None:
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    rule = masks()[mask]
    seen = torch.ones(5, 7, dtype=torch.bool) if rule is None else rule.dense((2, 3), 5, 7, q.device)
    z, w = attend(q, k, v, energy=r.Dot(), normalize=r.Unnormalized(), mask=rule, backend=backend, weights=True)
    truth = (q @ k.mT).masked_fill(~seen, 0)
    torch.testing.assert_close(z, truth @ v)
    torch.testing.assert_close(w.dense(), truth)
    direction = torch.randn_like(z)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), direction) for x in (z, truth @ v))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", energies())
def test_takes_every_energy(name: str) -> None:
    torch.manual_seed(0)
    q, k, v = inputs()
    energy = energies()[name]
    e = energy(q, k)
    torch.testing.assert_close(attend(q, k, v, energy=energy, normalize=r.Unnormalized()), e.to(v.dtype) @ v)


def _weights(monkeypatch: pytest.MonkeyPatch) -> tuple[r.Weights, torch.Tensor]:
    monkeypatch.setattr("regard.attention.statistics.BLOCK", 900)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs((2,), 40, 90)
    k = k.abs() * -q.sign()[:, :1]  # mostly negative energies
    _, w = attend(q, k, v, normalize=r.Unnormalized(), mask=r.causal(3), weights=True)
    return w, w.dense()


def test_statistics_are_those_of_the_dense_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    w, dense = _weights(monkeypatch)
    assert (dense < 0).any()
    assert (dense > 1).any()
    torch.testing.assert_close(w.tile(slice(5, 20), slice(3, 70)), dense[:, 5:20, 3:70])
    torch.testing.assert_close(w.received(), dense.sum(-2))
    torch.testing.assert_close(w.on([1, 4]), dense[..., [1, 4]].sum(-1))
    torch.testing.assert_close(w.offset(-1)[:, 1:], dense.diagonal(-1, 1, 2)[:, :39])
    for k in (1, 3, 90):
        torch.testing.assert_close(w.top(k).values, dense.topk(k, -1).values)
    for size in ((4, 9), (7, 13), (40, 90), (1, 1)):
        for pool in ("max", "mean"):
            torch.testing.assert_close(w.map(size, pool), pooled_cells(dense, *size, pool))


def test_a_map_of_negative_weights_has_no_zeros() -> None:
    q, k = torch.ones(3, 1), -torch.ones(6, 1)
    _, w = attend(q, k, k, energy=r.Dot(), normalize=r.Unnormalized(), weights=True)
    assert (w.map((2, 4)) == -1).all()


def test_entropy_is_nan_where_a_weight_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    w, dense = _weights(monkeypatch)
    negative = (dense < 0).any(-1)
    assert w.entropy()[negative].isnan().all()
    assert not w.entropy()[~negative].isnan().any()


def test_fidelity_watch_and_trace(tmp_path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, normalize=r.Unnormalized(), mask=r.causal())

    q, k, v = inputs(dtype=torch.float32)
    with r.watch(model := Sum()) as seen:
        out = model(q, k, v)
    assert seen[0].fidelity().faithful
    assert float(seen[0].weights.fidelity(v, out).max()) < 1e-6
    assert float(seen[0].weights.fidelity(v, 2 * out).max()) > 0.4
    seen.save(tmp_path / "trace")
    again = r.load_trace(tmp_path / "trace")[0]
    assert again.fidelity().faithful
    torch.testing.assert_close(again.weights.dense(), seen[0].weights.dense())


def test_kernels_of_softmax_refuse_it() -> None:
    q, k, v = inputs()
    for backend in ("sdpa", "flex"):
        with pytest.raises(ValueError, match="softmax only, not Unnormalized"):
            attend(q, k, v, normalize=r.Unnormalized(), backend=backend)
