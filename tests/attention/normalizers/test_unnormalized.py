"""Unnormalized: sums over the keys, with weights that may be negative or exceed one."""

from itertools import pairwise

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import energies, inputs, masks


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
    monkeypatch.setattr("regard.attention.weights.weight_blocks.BLOCK", 900)  # several blocks
    monkeypatch.setattr("regard.attention.weights.weight_blocks.STEP", 16)
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
        for pool, reduce in (("max", torch.amax), ("mean", torch.mean)):
            rows, cols = ([n * at // cells for at in range(cells + 1)] for n, cells in zip((40, 90), size, strict=True))
            cells = [[reduce(dense[:, a:b, c:d], dim=(-2, -1)) for c, d in pairwise(cols)] for a, b in pairwise(rows)]
            expected = torch.stack([torch.stack(row, -1) for row in cells], -2)
            torch.testing.assert_close(w.map(size, pool), expected)
            if size[1] < 30:
                tile = w.tile(slice(0, 40), slice(0, 90), size, pool)
                torch.testing.assert_close(tile, expected)


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
