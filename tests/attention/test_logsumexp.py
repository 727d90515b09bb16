"""Weights.logsumexp: the logarithm of the softmax's denominator, and attention joined from parts of the keys."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import energies, inputs, masks


@pytest.mark.parametrize("mask", ["none", "causal", "empty entry", "dense"])
@pytest.mark.parametrize("name", ["scaled", "additive", "modified", "own function"])
def test_is_the_formula_and_differentiable(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.statistics.BLOCK", 100)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    energy, rule = energies()[name], masks()[mask]
    seen = torch.ones(5, 7, dtype=torch.bool) if rule is None else rule.dense((2, 3), 5, 7, q.device)
    sink = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for normalize in (r.Softmax(), r.Softmax(0.5), r.Softmax(sink=sink)):
        _, w = attend(q, k, v, energy=energy, normalize=normalize, mask=rule, weights=True)
        e = energy(q, k).masked_fill(~seen, -torch.inf) / normalize.temperature
        if normalize.sink is not None:
            e = torch.cat([e, sink[:, None, None].expand(2, 3, 5, 1)], -1)
        empty = (e == -torch.inf).all(-1)
        truth = e.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)
        lse = w.logsumexp()
        assert lse.shape == (2, 3, 5)
        torch.testing.assert_close(lse, truth)
        with torch.no_grad():
            torch.testing.assert_close(w.logsumexp(), truth)
            torch.testing.assert_close(w[1, 2].rows([4, 0]).logsumexp(), truth[1, 2, [4, 0]])
        inputs_ = (q, k, *(() if normalize.sink is None else (sink,)))
        direction = torch.randn_like(lse)
        ours, theirs = (torch.autograd.grad(x, inputs_, direction) for x in (lse, truth))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "fused", "flex"])
def test_parts_of_the_keys_join_to_the_whole(backend: str) -> None:
    q, k, v = inputs((2, 3), 6, 11)
    mask = torch.rand(6, 11) > 0.4
    mask[0], mask[1, :4] = False, False  # a query that sees nothing, and one that sees nothing of the first part
    parts = [slice(0, 4), slice(4, 9), slice(9, 11)]
    results = [attend(q, k[..., p, :], v[..., p, :], mask=mask[:, p], backend=backend, weights=True) for p in parts]
    lse = torch.stack([w.logsumexp() for _, w in results])
    shares = (lse - lse.logsumexp(0)).exp().nan_to_num(0)
    z = sum(share[..., None] * z for share, (z, _) in zip(shares, results, strict=True))
    whole, w = attend(q, k, v, mask=mask, backend=backend, weights=True)
    torch.testing.assert_close(z, whole)
    torch.testing.assert_close(lse.logsumexp(0), w.logsumexp())


def test_of_one_query_and_of_other_normalizers() -> None:
    q, k, v = (torch.randn(*size, requires_grad=True) for size in ((4,), (6, 4), (6, 3)))
    _, w = attend(q, k, v, weights=True)
    torch.testing.assert_close(w.logsumexp(), (k @ q / 2).logsumexp(0))
    _, w = attend(q, k, v, normalize=r.Sparsemax(), weights=True)
    with pytest.raises(TypeError, match="softmax's denominator; Sparsemax has none"):
        w.logsumexp()


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_of_large_energies(size: float) -> None:
    q, k, v = inputs()
    _, w = attend(q * size, k, v, weights=True)
    torch.testing.assert_close(w.logsumexp(), (q @ k.mT * (size / 2)).logsumexp(-1))
