"""NaN and ∞ behind a mask reach no query that does not see them, forward and backward, on any backend."""

import math

import pytest
import torch

import regard as r
from regard import attend
from regard.attention import blocked_attention
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs, masks

BAD = [math.nan, math.inf, -math.inf]
SMOOTH = {name: x for name, x in NORMALIZERS.items() if name in ("softmax", "sparsemax", "entmax 1.5", "hard")}
EVERY = [
    *((e, n) for e in ("scaled", "additive", "own function") for n in SMOOTH),
    *((e, "softmax") for e in energies()),
]


def problem(energy: str, normalize: str) -> dict:
    return {
        "energy": (energies() | POSITIVE)[energy],
        "normalize": (SMOOTH | {"proportional": r.Proportional()})[normalize],
    }


def results(q, k, v, options) -> tuple[torch.Tensor, list[torch.Tensor]]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    leaves = list(options["energy"].parameters()) if isinstance(options.get("energy"), torch.nn.Module) else []
    z = attend(q, k, v, **options)
    return z, list(torch.autograd.grad(z.square().sum(), (q, k, v, *leaves), allow_unused=True))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused"])
@pytest.mark.parametrize("where", ["k", "v"])
def test_padding_as_it_was_found(where: str, backend: str, bad: float) -> None:
    q, k, v = inputs((2,), 5, 5, 4, 4, dtype=torch.float32)
    options = {"mask": r.padding([5, 3]), "backend": backend}
    expected, gradients = results(q, k, v, options)
    {"k": k, "v": v}[where][1, 3:] = bad
    z, ours = results(q, k, v, options)
    torch.testing.assert_close(z, expected)
    torch.testing.assert_close(ours, gradients)


@pytest.mark.parametrize("block", [16, 1 << 18])
@pytest.mark.parametrize(("energy", "normalize"), [*dict.fromkeys(EVERY), ("inverse distance", "proportional")])
def test_keys_that_no_query_sees(energy: str, normalize: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of learned energies, too: the keys are cleared before they are projected."""
    monkeypatch.setattr(blocked_attention, "BLOCK", block)
    q, k, v = inputs((2, 3))
    options = problem(energy, normalize) | {"mask": r.causal(1) & r.padding([7, 4])}
    for backend in ("auto", "reference", "fused"):
        expected, gradients = results(q, k, v, options | {"backend": backend})
        bad_k, bad_v = k.clone(), v.clone()
        bad_k[1, :, 4:], bad_v[1, :, 5:] = math.nan, -math.inf
        z, ours = results(q, bad_k, bad_v, options | {"backend": backend})
        torch.testing.assert_close(z, expected)
        torch.testing.assert_close(ours, gradients)


@pytest.mark.parametrize(("where", "bad"), [("k", math.nan), ("v", math.inf), ("q", -math.inf)])
@pytest.mark.parametrize(("energy", "normalize"), [*dict.fromkeys(EVERY), ("inverse distance", "proportional")])
def test_a_key_that_some_queries_see(
    energy: str, normalize: str, where: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that do not see it, and keys that a bad query does not see, are as if it were not there."""
    monkeypatch.setattr(blocked_attention, "BLOCK", 64)
    q, k, v = inputs((2, 3))
    options = problem(energy, normalize) | {"mask": r.causal(1)}
    for backend in ("auto", "reference", "fused"):
        options["backend"] = backend
        expected, _ = results(q, k, v, options)
        changed = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        changed[where][..., 3, :] = bad
        z, (dq, dk, dv, *_) = results(**changed, options=options)
        rows = torch.arange(5)
        blind = rows != 3 if where == "q" else rows + 1 < 3
        torch.testing.assert_close(z[..., blind, :], expected[..., blind, :])
        # With the loss of those queries alone, gradients are those of a call that never had the others.
        assert dq is None or dq[..., blind, :].isfinite().all()
        unseen = torch.arange(7) > 5  # by the last query, and so by all
        for gradient in (dk, dv):
            assert gradient is None or gradient[..., unseen, :].isfinite().all()


@pytest.mark.parametrize("name", masks())
def test_every_mask(name: str) -> None:
    """A value that is NaN makes NaN of exactly the queries that see it."""
    mask = masks()[name]
    q, k, v = inputs((2, 3))
    seen = torch.ones(5, 7, dtype=torch.bool) if mask is None else mask.dense((2, 3), 5, 7, q.device)
    v[..., 2, 0] = math.nan
    for backend in ("auto", "reference", "fused"):
        z = attend(q, k, v, mask=mask, backend=backend)
        assert torch.equal(z[..., 0].isnan(), seen.expand(2, 3, 5, 7)[..., 2])
        assert not z[..., 1:].isnan().any()
        z, weights = attend(q, k, v.requires_grad_(), mask=mask, backend=backend, weights=True)
        assert torch.equal(z[..., 0].isnan(), seen.expand(2, 3, 5, 7)[..., 2])
        assert weights.dense().isfinite().all()


def test_grouped_heads_and_broadcast_keys() -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    mask = r.padding([6, 3])
    expected = attend(q, k, v, mask=mask)
    k[1, :, 3:], v[1, :, 3:] = math.nan, math.inf
    torch.testing.assert_close(attend(q, k, v, mask=mask), expected)
    # Keys that the entries of a batch share are hidden only where all of them hide them.
    shared, values = torch.randn(6, 8), torch.randn(6, 8)
    expected = attend(q, shared, values, mask=mask)
    values[4] = math.nan
    z = attend(q, shared, values, mask=mask)
    assert z[0].isnan().all()
    torch.testing.assert_close(z[1], expected[1])


def test_weights_of_queries_beside_a_bad_key() -> None:
    q, k, v = inputs((2,))
    _, expected = attend(q, k, v, mask=r.causal(), weights=True)
    bad = k.clone()
    bad[:, 3] = math.nan
    _, weights = attend(q, bad, v, mask=r.causal(), weights=True)
    torch.testing.assert_close(weights.rows(slice(0, 3)).dense(), expected.rows(slice(0, 3)).dense())
    torch.testing.assert_close(weights.tile(slice(0, 3), slice(0, 5)), expected.tile(slice(0, 3), slice(0, 5)))
    torch.testing.assert_close(weights.entropy()[:, :3], expected.entropy()[:, :3])


def test_a_sum_that_overflows_is_no_reason() -> None:
    x = torch.full((4, 4), 3e38, requires_grad=True)
    assert r.explain(x, x, x, mask=r.causal()).backend == "sdpa"
    with torch.no_grad():
        x[2, 1] = math.inf
    plan = r.explain(x, x, x, mask=r.causal())
    assert plan.backend == "fused"
    assert "behind the mask" in plan.others["sdpa"]
    assert r.explain(x, x, x).backend == "sdpa"  # without a mask nothing is hidden


def test_in_a_trace_padding_is_cleared() -> None:
    """Numbers cannot be read there; what the mask hides from all queries is cleared without."""
    q, k, v = inputs((2,), 5, 5, 4, 4, dtype=torch.float32)
    mask = r.causal() & r.padding([5, 3])
    expected = attend(q, k, v, mask=mask)
    k[1, 3:], v[1, 3:] = math.nan, math.inf
    run = torch.compile(lambda q, k, v: attend(q, k, v, mask=mask), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(q, k, v), expected)


@pytest.mark.parametrize(
    "mask", [r.padding([7, 4]), r.padding([7, 4]) & r.causal(), r.padding([7, 4]) | r.prefix([2, 5])], ids=repr
)
def test_hidden_keys_that_a_mask_names(mask: r.Mask) -> None:
    seen = mask.dense((2, 3), 9, 7, torch.device("cpu")).expand(2, 3, 9, 7)
    hidden = mask.hidden((2, 3), 7, torch.device("cpu")).expand(2, 3, 7)
    assert torch.equal(hidden & seen.any(-2), torch.zeros_like(hidden))
    assert hidden.any()


def test_parameters_that_a_function_uses_get_finite_gradients() -> None:
    q, k, v = torch.randn(1, 5, 4), torch.randn(1, 6, 4), torch.randn(1, 6, 3)
    k[:, 4:] = torch.nan
    weight = torch.eye(4, requires_grad=True)
    z = r.attend(q, k, v, energy=lambda a, b: a @ weight @ b.mT, mask=r.padding([4]))
    assert torch.autograd.grad(z.sum(), weight)[0].isfinite().all()
