"""Normalizers beside the entmax package, their definitions, and sampling theory."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, inputs


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
    torch.testing.assert_close(r.Entmax(1.0001)(e), e.softmax(-1), rtol=0, atol=1e-3)
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
    with pytest.raises(ValueError, match="alpha > 1"):
        r.Entmax(torch.tensor(1.0))


@pytest.mark.parametrize("normalize", [r.Sparsemax(), r.Entmax(1.5), r.Softmax()])
def test_large_and_half_precision_energies(normalize: r.Normalizer) -> None:
    e = torch.tensor([[1e4, -1e4, 1e4, 0.0]])
    torch.testing.assert_close(normalize(e), torch.tensor([[0.5, 0.0, 0.5, 0.0]]))


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
        (lambda: r.Entmax(1.0), "alpha > 1"),
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
