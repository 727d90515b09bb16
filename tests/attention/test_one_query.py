"""One query as a vector: q [D], keys [T, D] → output [D_v], weights [T], as the lectures' slides write it."""

import pytest
import torch

import regard as r
from regard import attend


def _inputs(batch: tuple[int, ...] = (), grad: bool = False) -> tuple[torch.Tensor, ...]:
    sizes = ((4,), (*batch, 6, 4), (*batch, 6, 3))
    return tuple(torch.randn(size, dtype=torch.float64, requires_grad=grad) for size in sizes)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused", "flex"])
def test_is_the_formula(backend: str) -> None:
    q, k, v = _inputs()
    z, w = attend(q, k, v, backend=backend, mask=r.padding(5), weights=True)
    e = torch.stack([q @ k[j] / 2 for j in range(5)])
    a = torch.cat([e.softmax(0), torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(z, sum(a[j] * v[j] for j in range(6)))
    assert z.shape == (3,)
    assert w.shape == (6,)
    torch.testing.assert_close(w.dense(), a)
    assert repr(w).startswith("Weights([6], Softmax")


def test_gradients() -> None:
    q, k, v = _inputs(grad=True)
    z, w = attend(q, k, v, weights=True)
    truth = torch.softmax(k @ q / 2, 0) @ v
    for ours, theirs in ((z, truth), (w.dense(), torch.softmax(k @ q / 2, 0))):
        direction = torch.randn_like(ours)
        grads = [torch.autograd.grad(x, (q, k), direction, retain_graph=True) for x in (ours, theirs)]
        torch.testing.assert_close(*grads)


def test_statistics_have_no_dimension_for_queries() -> None:
    q, k, v = _inputs()
    z, w = attend(q, k, v, weights=True)
    a = w.dense()
    torch.testing.assert_close(w.entropy(), -(a * a.log()).sum())
    values, indices = w.top(2)
    torch.testing.assert_close(values, a.topk(2).values)
    assert indices.shape == (2,)
    torch.testing.assert_close(w.on([0, 2]), a[0] + a[2])
    torch.testing.assert_close(w.offset(3), a[3])
    torch.testing.assert_close(w.received(), a)
    assert float(w.fidelity(v, z)) < 1e-12
    assert w.stats(offsets=[0, 1]).offsets.shape == (2,)
    # Where a row is named there is one: a matrix with one row.
    torch.testing.assert_close(w.tile(0, slice(1, 3)), a[None, 1:3])
    assert w.rows(0).shape == (1, 6)
    assert w.map((1, 3)).shape == (1, 3)


def test_many_key_matrices() -> None:
    q, k, v = _inputs((2, 5))
    z, w = attend(q, k, v, weights=True)
    assert z.shape == (2, 5, 3)
    assert w.shape == (2, 5, 6)
    torch.testing.assert_close(z, attend(q[None], k, v)[..., 0, :])
    assert w[0].shape == (5, 6)
    assert w[1, 2].entropy().shape == ()
    torch.testing.assert_close(w[1, 2].dense(), torch.softmax(k[1, 2] @ q / 2, 0))
    assert w.fidelity(v, z).shape == (2, 5)


def test_hard_attention_of_one_query() -> None:
    q, k, v = _inputs(grad=True)
    z, w = attend(q, k, v, normalize=r.Hard("reinforce"), weights=True)
    assert z.shape == (3,)
    assert w.log_prob().shape == ()
    w.log_prob().backward()
    assert q.grad.shape == (4,)


def test_watch_records_one_row() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v)

    q, k, v = _inputs((2,))
    with r.watch(model := Attention()) as seen:
        assert model(q, k, v).shape == (2, 3)
    assert seen[0].weights.shape == (2, 1, 6)
    assert seen[0].fidelity().faithful


@pytest.mark.parametrize(
    ("q", "k", "v"), [((4,), (4,), (4,)), ((4,), (6, 4), (6,)), ((), (6, 4), (6, 4)), ((2, 4), (4,), (4,))]
)
def test_vectors_where_a_matrix_belongs(q, k, v) -> None:
    with pytest.raises(ValueError, match=r"at least \[T, D\]: given q.*expected q \[..., T_q, D_q\] or \[D_q\]"):
        attend(torch.ones(q), torch.ones(k), torch.ones(v))
