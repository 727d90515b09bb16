"""attend() beside what others compute: SDPA, nn.MultiheadAttention, the formulas of the papers in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard as r
from regard import attend
from tests.support.attention_cases import inputs, within_budget

HALVES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, *HALVES])
def test_equals_sdpa_with_gradients(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = inputs((2, 4), 33, 33, 16, 16, dtype=dtype, grad=True)
    mask = r.causal() if causal else None
    mine, theirs = attend(q, k, v, mask=mask), sdpa(q, k, v, is_causal=causal)
    assert torch.equal(mine, theirs)
    direction = torch.randn_like(mine)
    for x, y in zip(*(torch.autograd.grad(z, (q, k, v), direction) for z in (mine, theirs)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("backend", ["reference", "fused", "flex", "sdpa"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_backend_keeps_the_error_budget(backend: str, dtype: torch.dtype) -> None:
    q, k, v = inputs((2, 3), 37, 65, 32, 32, dtype=torch.float64)
    low = [x.to(dtype) for x in (q, k, v)]
    truth = attend(*(x.double() for x in low), backend="reference")
    within_budget(attend(*low, backend=backend), sdpa(*low), truth, dtype)


def test_multihead_attention_of_torch() -> None:
    """nn.MultiheadAttention given the same projections: output, weights, gradients."""
    theirs = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
    x, y = torch.randn(2, 5, 24, dtype=torch.float64), torch.randn(2, 7, 24, dtype=torch.float64)
    lengths = torch.tensor([7, 4])
    closed = torch.arange(7) >= lengths[:, None]
    expected, weights = theirs(x, y, y, key_padding_mask=closed, average_attn_weights=False)

    def heads(rows: torch.Tensor, part: int) -> torch.Tensor:
        weight, bias = theirs.in_proj_weight.chunk(3)[part], theirs.in_proj_bias.chunk(3)[part]
        return nn.functional.linear(rows, weight, bias).unflatten(-1, (4, 6)).transpose(1, 2)

    z, w = attend(heads(x, 0), heads(y, 1), heads(y, 2), mask=r.padding(lengths), weights=True)
    mine = theirs.out_proj(z.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(w.dense(), weights)
    direction = torch.randn_like(mine)
    parameters = list(theirs.parameters())
    for a, b in zip(*(torch.autograd.grad(o, parameters, direction) for o in (mine, expected)), strict=True):
        torch.testing.assert_close(a, b)


def _bahdanau(energy: r.Additive, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = []
    for i in range(q.shape[0]):
        e = torch.stack(
            [energy.weight @ torch.tanh(energy.query.weight @ q[i] + energy.key.weight @ k[j]) for j in range(len(k))]
        )
        alpha = torch.exp(e) / torch.exp(e).sum()
        rows.append(sum(alpha[j] * v[j] for j in range(len(k))))
    return torch.stack(rows)


def _luong(score, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = []
    for i in range(q.shape[0]):
        e = torch.stack([score(q[i], k[j]) for j in range(len(k))])
        a = torch.exp(e) / torch.exp(e).sum()
        rows.append(sum(a[j] * v[j] for j in range(len(k))))
    return torch.stack(rows)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("kind", ["bahdanau", "dot", "general", "concat"])
def test_the_papers_formulas_with_gradients(kind: str, backend: str) -> None:
    """Bahdanau's and Luong's scores written out pair by pair, as the papers print them."""
    q, k, v = (x[0, 0].detach().requires_grad_() for x in inputs())
    energy = {
        "bahdanau": r.Additive(4, 4, 6).double(),
        "dot": r.Dot(),
        "general": r.General(4, 4).double(),
        "concat": r.Concat(4, 4, 6).double(),
    }[kind]
    if kind == "bahdanau":
        expected = _bahdanau(energy, q, k, v)
    else:
        score = {
            "dot": lambda h, s: h @ s,
            "general": lambda h, s: h @ energy.weight @ s,
            "concat": lambda h, s: energy.weight @ torch.tanh(energy.joint.weight @ torch.cat([h, s])),
        }[kind]
        expected = _luong(score, q, k, v)
    mine = attend(q, k, v, energy=energy, backend=backend)
    torch.testing.assert_close(mine, expected)
    leaves = [q, k, v, *(energy.parameters() if isinstance(energy, nn.Module) else [])]
    direction = torch.randn_like(mine)
    for a, b in zip(*(torch.autograd.grad(o, leaves, direction) for o in (mine, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_learned_energies_start_as_linear_layers_do() -> None:
    for energy in (r.General(64, 32), r.Additive(64, 32, 16), r.Concat(64, 32, 16)):
        for parameter in energy.parameters():
            assert 0 < parameter.std() < 1
    assert r.Additive(64, 32, 16).weight.abs().max() <= 1 / math.sqrt(16)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused", "flex"])
def test_fewer_key_heads_than_query_heads_share(backend: str) -> None:
    q = torch.randn(2, 6, 5, 8)
    k, v = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
    expected = attend(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), backend="reference")
    z, w = attend(q, k, v, backend=backend, weights=True)
    torch.testing.assert_close(z, expected)
    assert w.shape == (2, 6, 5, 7)
    assert w.fidelity(v, z).max() < 1e-6


LEADING = [
    ((), (), ()),
    ((3,), (3,), (3,)),
    ((4, 1), (1, 3), (3,)),
    ((2, 1, 3), (1, 4, 1), (2, 4, 3)),
    ((3,), (1,), ()),
    ((1,), (5,), (5,)),
]


@pytest.mark.parametrize(
    ("energy", "backend"),
    [*(("scaled", name) for name in ("auto", "sdpa", "fused", "flex")), ("additive", "fused")],
)
@pytest.mark.parametrize("lead", LEADING)
def test_leading_dimensions_broadcast(lead, energy: str, backend: str) -> None:
    a, b, c = lead
    q, k, v = torch.randn(*a, 5, 8), torch.randn(*b, 7, 8), torch.randn(*c, 7, 3)
    how = r.ScaledDot() if energy == "scaled" else r.Additive(8, 8, 4)
    with torch.no_grad():
        mask = r.causal(2)
        expected = attend(q, k, v, energy=how, mask=mask, backend="reference")
        assert expected.shape == (*torch.broadcast_shapes(a, b, c), 5, 3)
        torch.testing.assert_close(attend(q, k, v, energy=how, mask=mask, backend=backend), expected)


def test_strided_inputs() -> None:
    base = torch.randn(2, 9, 3, 8, requires_grad=True)
    q = k = base.transpose(1, 2)  # [2, 3, 9, 8], not contiguous
    v = torch.randn(2, 3, 8, 9).mT
    for energy in (r.ScaledDot(), r.Additive(8, 8, 4)):
        expected = attend(q.contiguous(), k.contiguous(), v.contiguous(), energy=energy, backend="reference")
        torch.testing.assert_close(attend(q, k, v, energy=energy), expected)


def test_different_widths() -> None:
    q, k, v = torch.randn(5, 3), torch.randn(7, 4), torch.randn(7, 2)
    for energy in (r.General(3, 4), r.Additive(3, 4, 5), r.Concat(3, 4, 5)):
        assert attend(q, k, v, energy=energy).shape == (5, 2)
        assert energy(q, k).shape == (5, 7)


def test_autocast_lowers_what_it_should() -> None:
    q, k, v = inputs((2, 3), dtype=torch.float32)
    energy = r.Additive(4, 4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        for how in (r.ScaledDot(), energy, r.General(4, 4), r.Gaussian()):
            z = attend(q, k, v, energy=how)
            assert z.dtype == torch.bfloat16
            exact = attend(q.double(), k.double(), v.double(), energy=how.double() if hasattr(how, "double") else how)
            assert (z.double() - exact.double()).abs().max() < 0.05
    assert attend(q.double(), k.double(), v.double()).dtype == torch.float64


def test_autocast_under_training_matches_float32_roughly() -> None:
    q, k, v = inputs((4,), 20, 20, 16, 16, dtype=torch.float32, grad=True)
    energy = r.Additive(16, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        attend(q, k, v, energy=energy).float().square().sum().backward()
    low = energy.weight.grad.clone()
    energy.zero_grad()
    attend(q, k, v, energy=energy).square().sum().backward()
    torch.testing.assert_close(low, energy.weight.grad, rtol=0.1, atol=0.05)


def test_nested_tensors_are_refused_with_what_to_use() -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"documents\(ids\)"):
        attend(x, x, x)
    with pytest.raises(AttributeError, match=r"documents\(ids\)"):
        r.attend_packed  # noqa: B018


def _vector(batch: tuple[int, ...] = (), grad: bool = False) -> tuple[torch.Tensor, ...]:
    sizes = ((4,), (*batch, 6, 4), (*batch, 6, 3))
    return tuple(torch.randn(size, dtype=torch.float64, requires_grad=grad) for size in sizes)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "fused", "flex"])
def test_one_query_is_the_formula(backend: str) -> None:
    q, k, v = _vector()
    z, w = attend(q, k, v, backend=backend, mask=r.padding(5), weights=True)
    e = torch.stack([q @ k[j] / 2 for j in range(5)])
    a = torch.cat([e.softmax(0), torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(z, sum(a[j] * v[j] for j in range(6)))
    assert z.shape == (3,)
    assert w.shape == (6,)
    torch.testing.assert_close(w.dense(), a)
    assert repr(w).startswith("Weights([6], Softmax")


def test_gradients_of_one_query() -> None:
    q, k, v = _vector(grad=True)
    z, w = attend(q, k, v, weights=True)
    truth = torch.softmax(k @ q / 2, 0) @ v
    for ours, theirs in ((z, truth), (w.dense(), torch.softmax(k @ q / 2, 0))):
        direction = torch.randn_like(ours)
        grads = [torch.autograd.grad(x, (q, k), direction, retain_graph=True) for x in (ours, theirs)]
        torch.testing.assert_close(*grads)


def test_statistics_have_no_dimension_for_queries() -> None:
    q, k, v = _vector()
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
    q, k, v = _vector((2, 5))
    z, w = attend(q, k, v, weights=True)
    assert z.shape == (2, 5, 3)
    assert w.shape == (2, 5, 6)
    torch.testing.assert_close(z, attend(q[None], k, v)[..., 0, :])
    assert w[0].shape == (5, 6)
    assert w[1, 2].entropy().shape == ()
    torch.testing.assert_close(w[1, 2].dense(), torch.softmax(k[1, 2] @ q / 2, 0))
    assert w.fidelity(v, z).shape == (2, 5)


def test_hard_attention_of_one_query() -> None:
    q, k, v = _vector(grad=True)
    z, w = attend(q, k, v, normalize=r.Hard("reinforce"), weights=True)
    assert z.shape == (3,)
    assert w.log_prob().shape == ()
    w.log_prob().backward()
    assert q.grad.shape == (4,)


def test_watch_records_one_row() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v)

    q, k, v = _vector((2,))
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


def test_what_keys_receive_from_queries_and_keys_alone() -> None:
    q, k = torch.randn(2, 4, 30, 8), torch.randn(2, 2, 30, 8)
    _, w = attend(q, k, k, mask=r.causal(), weights=True)
    torch.testing.assert_close(r.received(q, k, mask=r.causal()), w.dense().sum(-2))
    assert r.received(q[0, 0], k[0, 0]).shape == (30,)
