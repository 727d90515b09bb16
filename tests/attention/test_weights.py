"""Every answer of Weights equals the same question asked of the dense matrix."""

import pytest
import torch

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies, inputs, masks, pooled_cells


def _answers_match(w: r.Weights, dense: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    *batch, queries, keys = dense.shape
    assert w.shape == tuple(dense.shape)
    torch.testing.assert_close(w.dense(), dense)
    torch.testing.assert_close(w.tile(slice(1, 4), [0, 5, 2]), dense[..., 1:4, :][..., [0, 5, 2]])
    torch.testing.assert_close(w.tile(-1, slice(None)), dense[..., -1:, :])
    torch.testing.assert_close(w.entropy(), -torch.xlogy(dense, dense).sum(-1), equal_nan=True)
    values, indices = w.top(3)
    torch.testing.assert_close(values, dense.topk(3, dim=-1).values)
    torch.testing.assert_close(dense.gather(-1, indices), values)
    torch.testing.assert_close(w.received(), dense.sum(-2))
    for n in (-2, 0, 1, 100):
        padded = torch.zeros(*batch, queries, dtype=dense.dtype)
        for i in range(queries):
            if 0 <= i + n < keys:
                padded[..., i] = dense[..., i, i + n]
        torch.testing.assert_close(w.offset(n), padded)
    chosen = torch.zeros(keys, dtype=torch.bool)
    chosen[[1, 4]] = True
    torch.testing.assert_close(w.on([1, 4, 1]), dense[..., [1, 4]].sum(-1))
    torch.testing.assert_close(w.on(chosen), dense[..., chosen].sum(-1))
    for rows, cols in ((1, 1), (2, 3), (queries, keys), (50, 50)):
        for pool in ("max", "mean"):
            torch.testing.assert_close(w.map((rows, cols), pool=pool), pooled_cells(dense, rows, cols, pool))
    torch.testing.assert_close(w.fidelity(v, out), torch.zeros(batch, dtype=dense.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize("energy", energies())
@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_every_energy_and_normalizer(energy: str, normalize: str) -> None:
    q, k, v = inputs()
    arguments = {"energy": energies()[energy], "normalize": NORMALIZERS[normalize], "mask": r.causal(1)}
    dense = attend(q, k, v, **arguments, backend="reference", weights=True)[1].dense().detach()
    with torch.no_grad():
        out, w = attend(q, k, v, **arguments, weights=True)
    _answers_match(w, dense, v, out)


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("energy", ["scaled", "additive", "modified"])
def test_every_mask(mask: str, energy: str) -> None:
    q, k, v = inputs()
    arguments = {"energy": energies()[energy], "mask": masks()[mask]}
    with torch.no_grad():
        dense = attend(q, k, v, **arguments, backend="reference", weights=True)[1].dense()
        out, w = attend(q, k, v, **arguments, weights=True)
        _answers_match(w, dense, v, out)


@pytest.mark.parametrize("energy", POSITIVE)
def test_the_look_up_family(energy: str) -> None:
    q, k, v = inputs()
    k[..., 2, :] = q[..., 1, :]  # one exact match
    arguments = {"energy": POSITIVE[energy], "normalize": r.Proportional()}
    dense = attend(q, k, v, **arguments, backend="reference", weights=True)[1].dense()
    out, w = attend(q, k, v, **arguments, weights=True)
    _answers_match(w, dense, v, out)


def test_grouped_heads() -> None:
    q, k, v = torch.randn(2, 6, 5, 4).double(), torch.randn(2, 2, 7, 4).double(), torch.randn(2, 2, 7, 6).double()
    dense = attend(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), weights=True)[1].dense()
    out, w = attend(q, k, v, weights=True)
    _answers_match(w, dense, v, out)
    assert w[:, 2:4].fidelity(v, out[:, 2:4]).max() < 1e-12
    assert w[1, 5].fidelity(v, out[1, 5]).max() < 1e-12


def test_parts() -> None:
    q, k, v = inputs()
    mask = r.causal(1) & r.padding([7, 3])
    for energy in (r.ScaledDot(), energies()["modified"], energies()["additive"]):
        with torch.no_grad():
            out, w = attend(q, k, v, energy=energy, mask=mask, weights=True)
        dense = w.dense()
        _answers_match(w[1], dense[1], v[1], out[1])
        _answers_match(w[1, 2], dense[1, 2], v[1, 2], out[1, 2])
        _answers_match(w[:, 1], dense[:, 1], v[:, 1], out[:, 1])
        _answers_match(w[:, ::2], dense[:, ::2], v[:, ::2], out[:, ::2])
        torch.testing.assert_close(w[1, 2].rows(3).dense(), dense[1, 2, 3:4])
        torch.testing.assert_close(w.rows([4, 0, 1]).dense(), dense[..., [4, 0, 1], :])
        torch.testing.assert_close(w.rows([4, 0, 1]).entropy(), w.entropy()[..., [4, 0, 1]])
        torch.testing.assert_close(w.rows(slice(2, None)).rows(-1).offset(-1), w.offset(-1)[..., -1:])
        torch.testing.assert_close(w[0].rows([3]).received(), dense[0, :, 3])
        torch.testing.assert_close(w.rows([4, 1]).fidelity(v, out[..., [4, 1], :]).max(), torch.tensor(0.0).double())


def test_several_at_once_are_the_same_as_one_by_one() -> None:
    q, k, v = inputs((2, 3), 50, 70, dtype=torch.float32)
    out, w = attend(q, k, v, mask=r.causal(), weights=True)
    s = w.stats(entropy=True, top=5, received=True, offsets=[-1, 2], on=[0], map=(7, 9), pool="mean", fidelity=(v, out))
    assert torch.equal(s.entropy, w.entropy())
    assert torch.equal(s.top.indices, w.top(5).indices)
    assert torch.equal(s.received, w.received())
    assert torch.equal(s.offsets[..., 1], w.offset(2))
    assert torch.equal(s.on, w.on([0]))
    assert torch.equal(s.map, w.map((7, 9), pool="mean"))
    assert torch.equal(s.fidelity, w.fidelity(v, out))
    assert w.stats() == r.Stats()


def test_fidelity_tells_a_lie() -> None:
    q, k, v = inputs((2, 3), 20, 20)
    out, w = attend(q, k, v, mask=r.causal(), weights=True)
    _, unmasked = attend(q, k, v, weights=True)
    assert w.fidelity(v, out).max() < 1e-12
    assert unmasked.fidelity(v, out).min() > 0.05
    wrong = out.clone()
    wrong[1, 2] *= 1.1
    errors = w.fidelity(v, wrong)
    assert errors[1, 2] > 0.05
    assert errors[0].max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_weights_belong_to_the_output(dtype: torch.dtype) -> None:
    q, k, v = inputs((2, 3), 30, 40, 16, 16, dtype=dtype)
    out, w = attend(q, k, v, weights=True)
    assert w.fidelity(v, out).max() < 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(w.dense().sum(-1), torch.ones(2, 3, 30))


def test_state_comes_from_the_kernel_and_is_right_without_it() -> None:
    q, k, v = inputs((2, 3), values=4, dtype=torch.float32)
    _, given = attend(q, k, v, mask=r.padding([0, 5]), weights=True)
    _, result = attend(q, k, v[..., :3], mask=r.padding([0, 5]), weights=True)  # d_v ≠ d: not the flash kernel
    assert given.kernel_state is not None
    assert result.kernel_state is None
    torch.testing.assert_close(given.tile(slice(None), slice(None)), result.tile(slice(None), slice(None)))


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda w: w.top(8), ValueError, "1 ≤ k ≤ 7"),
        (lambda w: w.top(0), ValueError, "1 ≤ k ≤ 7"),
        (lambda w: w[2], IndexError, r"leading shape is \[2, 3\]"),
        (lambda w: w[0, 0, 0], IndexError, "pick queries with .rows"),
        (lambda w: w.rows(5), IndexError, "query 5 is out of range: there are 5"),
        (lambda w: w.rows([]), IndexError, "no query chosen"),
        (lambda w: w.tile(0, 7), IndexError, "key 7 is out of range"),
        (lambda w: w.on([9]), IndexError, "key 9"),
        (lambda w: w.on(torch.ones(3, dtype=torch.bool)), ValueError, "each of 7 keys"),
        (lambda w: w.on([0.5]), TypeError, "whole indices"),
        (lambda w: w.map((0, 3)), ValueError, "at least one row"),
        (lambda w: w.map((2, 2), pool="sum"), ValueError, '"max" or "mean"'),
        (lambda w: w.fidelity(torch.ones(6, 6), torch.ones(5, 6)), ValueError, r"fidelity needs v \[2, 3, 7, D_v\]"),
    ],
)
def test_bad_questions(ask, error, words: str) -> None:
    _, w = attend(*inputs(), weights=True)
    with pytest.raises(error, match=words):
        ask(w)


def test_lengths_changed_since_change_nothing_and_a_changed_matrix_is_an_error() -> None:
    q, lengths, seen = torch.randn(2, 5, 4), torch.tensor([3, 4]), torch.ones(5, 5).tril().bool()
    w = attend(q, q, q, mask=r.padding(lengths), weights=True)[1]
    before = w.dense()
    lengths.add_(1)
    assert w.dense().equal(before)
    for mask in (seen, r.padding([3, 4]) & ~r.dense(seen)):
        w = attend(q, q, q, mask=mask, weights=True)[1]
        w.dense()
        seen.logical_not_()
        for ask in (w.dense, w.entropy, w[0].rows(2).entropy):
            with pytest.raises(RuntimeError, match=r"the mask .* changed in place"):
                ask()


def test_repr_says_what_it_is() -> None:
    _, w = attend(*inputs(), weights=True)
    kept = (6 * 5 * 4 + 6 * 7 * 4) * 8  # q and k in float64; d_v ≠ d, so the kernel left no row state
    assert w.nbytes == kept
    assert repr(w) == f"Weights([2, 3, 5, 7], Softmax, keeps {kept:,} bytes)"


def test_keys_that_nobody_sees_are_left_out_and_change_nothing() -> None:
    """Statistics walk a causal matrix up to the diagonal; every answer is the whole matrix's."""
    q, k, v = (torch.randn(2, 2, 1200, 4, dtype=torch.float64) for _ in range(3))
    for mask in (r.causal(), r.causal() & r.padding([700, 1200]), r.causal() & r.window(40), r.causal(-600)):
        z, w = attend(q, k, v, mask=mask, weights=True)
        dense = w.dense()
        stats = w.stats(entropy=True, top=8, received=True, offsets=[-1, 0], on=[0, 900], fidelity=(v, z))
        assert torch.allclose(stats.entropy, -torch.special.xlogy(dense, dense).sum(-1))  # type: ignore[arg-type]
        assert torch.allclose(stats.top.values, dense.topk(8).values)  # type: ignore[union-attr]
        assert torch.allclose(stats.received, dense.sum(-2))  # type: ignore[arg-type]
        assert torch.allclose(stats.on, dense[..., [0, 900]].sum(-1))  # type: ignore[arg-type]
        assert torch.allclose(stats.offsets[..., 1], dense.diagonal(0, -2, -1))  # type: ignore[index]
        assert float(stats.fidelity.max()) < 1e-12  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_the_least_number(dtype: torch.dtype) -> None:
    """Masks that are added close keys with finfo.min. A row of nothing else is uniform: its energies round to that."""
    q = torch.randn(1, 4, 8, dtype=dtype)
    bias = torch.zeros(4, 4, dtype=dtype)
    bias[2] = torch.finfo(dtype).min
    z, w = attend(q, q, q, energy=r.Modified(r.ScaledDot(), r.Bias(bias)), weights=True)
    whole = w.dense()
    assert whole[0, 2].tolist() == [0.25] * 4
    torch.testing.assert_close(w.tile(slice(None), slice(None)), whole)
    torch.testing.assert_close(w.received(), whole.sum(-2))
    torch.testing.assert_close(w.entropy(), -torch.xlogy(whole, whole).sum(-1))
    torch.testing.assert_close(w.map((4, 4), "mean"), whole)
    assert float(w.fidelity(q, z)) < 4 * torch.finfo(dtype).eps


def test_a_row_of_the_least_float16() -> None:
    """−65,504 in float16: energies are held in float32, where they do not round to it. Nothing is lost of them."""
    q = torch.randn(1, 4, 8, dtype=torch.float16)
    bias = torch.zeros(4, 4, dtype=torch.float16)
    bias[2] = torch.finfo(torch.float16).min
    z, w = attend(q, q, q, energy=r.Modified(r.ScaledDot(), r.Bias(bias)), weights=True)
    whole = w.dense()
    torch.testing.assert_close(whole.sum(-1), torch.ones(1, 4))
    torch.testing.assert_close(w.tile(slice(None), slice(None)), whole)
    torch.testing.assert_close(w.received(), whole.sum(-2))
    assert float(w.fidelity(q, z)) < 4 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize("mask", [None, r.causal(2)], ids=["all", "causal"])
def test_what_a_modifier_returns_is_not_written_to(mask: r.Mask | None) -> None:
    """Weights are computed in the memory of the energies, which a function may still need."""
    q, k, table = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 5, 7)
    before = table.clone()
    energy = r.Modified(r.ScaledDot(), lambda e, batch, i, j: table)
    _, w = attend(q, k, k, energy=energy, mask=mask, weights=True)
    dense = w.dense()
    for weights in (w, r.Weights(w.energies, w.normalize)):
        torch.testing.assert_close(weights.entropy(), -torch.xlogy(dense, dense).sum(-1))
        torch.testing.assert_close(weights.tile(slice(None), slice(None)), dense)
    assert torch.equal(table, before)


def test_a_kept_matrix() -> None:
    dense, v = torch.rand(2, 3, 5, 7, dtype=torch.float64), torch.randn(2, 3, 7, 6, dtype=torch.float64)
    w = r.Weights.of_matrix(dense)
    _answers_match(w, dense, v, dense @ v)
    _answers_match(w[1, :2], dense[1, :2], v[1, :2], (dense @ v)[1, :2])
    dense.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        w.top(1)


def test_a_sum_of_weights() -> None:
    """Of softmax, of another normalizer, and of a kept matrix, selected before and after they are added."""
    q, k, v = inputs()
    first = attend(q, k, v, mask=r.causal(1), weights=True)[1]
    second = attend(q, k, v, normalize=r.Sparsemax(), weights=True)[1]
    kept = torch.rand(2, 3, 5, 7, dtype=torch.float64)
    dense = 0.5 * first.dense() + 0.2 * (second.dense() + kept)
    w = 0.5 * first + 0.2 * (second + r.Weights.of_matrix(kept))
    assert [factor for factor, _ in w.terms] == [0.5, 0.2, 0.2]
    _answers_match(w, dense, v, dense @ v)
    _answers_match(w[1, ::2], dense[1, ::2], v[1, ::2], (dense @ v)[1, ::2])
    torch.testing.assert_close(w.rows([4, 0]).dense(), dense[..., [4, 0], :])
    torch.testing.assert_close(
        (first[0, 1] + second[1, 2]).received(), (first.dense()[0, 1] + second.dense()[1, 2]).sum(-2)
    )
    g = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(r.Contributions(w, v, g).dense(), dense * (g @ v.mT))
    torch.testing.assert_close(r.Contributions(w, v, g).total(), (dense * (g @ v.mT)).sum(-1))
    with pytest.raises(TypeError, match=r"ask its \.terms"):
        w.energies  # noqa: B018
    with pytest.raises(ValueError, match="one shape"):
        first + second[0]  # type: ignore[operator]


def test_differential_attention_is_signed() -> None:
    """w1 − λ w2 (Ye et al. 2024): the differences of two softmax matrices, of which some are negative."""
    q, k, v = inputs()
    pair = [attend(x, k, v, weights=True)[1] for x in (q, -q)]
    w, dense = pair[0] - 0.8 * pair[1], pair[0].dense() - 0.8 * pair[1].dense()
    torch.testing.assert_close(w.tile(slice(1, 4), slice(2, 6)), dense[..., 1:4, 2:6])
    torch.testing.assert_close(w.map((2, 3)), pooled_cells(dense, 2, 3, "max"))
    torch.testing.assert_close(w.top(3).values, dense.topk(3).values)
    torch.testing.assert_close(w.map((3, 2), "mean"), pooled_cells(dense, 3, 2, "mean"))
    torch.testing.assert_close(w.received(), dense.sum(-2))
    assert float(w.fidelity(v, dense @ v).max()) < 1e-12
    torch.testing.assert_close((-w).dense(), -dense)


def test_a_factor_for_each_head_or_row() -> None:
    q, k, v = inputs()
    first, second = (attend(x, k, v, mask=r.causal(1), weights=True)[1] for x in (q, -q))
    per_head, gate = torch.randn(3, 1, 1, dtype=torch.float64), torch.rand(2, 3, 5, 1, dtype=torch.float64)
    gate.requires_grad_()
    w, dense = gate * first - second * per_head, gate * first.dense() - second.dense() * per_head
    _answers_match(w, dense.detach(), v, dense.detach() @ v)
    _answers_match(w[1, ::2], dense.detach()[1, ::2], v[1, ::2], (dense @ v).detach()[1, ::2])
    part = w[0, 2].rows([4, 1])
    torch.testing.assert_close(part.dense(), dense[0, 2, [4, 1]])
    torch.testing.assert_close((-2.0 * part).rows(1).received(), -2 * dense[0, 2, 1])
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), gate)[0] for x in (w.dense(), dense)))
    per_head.mul_(0)  # a sum keeps its factors
    torch.testing.assert_close(w.dense(), dense)
    torch.testing.assert_close((-first).received(), -first.dense().sum(-2))
    _, of_vector = attend(torch.randn(4), torch.randn(7, 4), torch.randn(7, 2), weights=True)
    half = torch.tensor(0.5)
    torch.testing.assert_close((half * of_vector).dense(), 0.5 * of_vector.dense())
    torch.testing.assert_close((half * of_vector).received(), 0.5 * of_vector.dense())
    with pytest.raises(ValueError, match=r"broadcasts to \[2, 3, 5, 1\].*got \[5, 7\]"):
        torch.rand(5, 7) * first


@pytest.mark.parametrize("normalize", [r.Softmax(), r.Softmax(0.3), r.Sparsemax()], ids=repr)
@pytest.mark.parametrize("mask", [None, r.causal(), r.causal() & r.window(600)], ids=str)
def test_long_rows_go_some_keys_at_a_time(mask: r.Mask | None, normalize: r.Normalizer) -> None:
    """The row states, shared by all selections, and the keys pooled in the pass that finds them."""
    q, k = torch.randn(2, 70, 8), torch.randn(2, 3000, 8)
    w = r.Weights(attend(q, k, k, normalize=normalize, mask=mask, weights=True)[1].energies, normalize)
    dense = w.dense()
    maxima, sums = w[1].rows(slice(5, 60)).pool_keys(4)
    torch.testing.assert_close(maxima[0], dense[1, 5:60].unflatten(-1, (-1, 4)).amax(-1))
    torch.testing.assert_close(sums[0], dense[1, 5:60].unflatten(-1, (-1, 4)).sum(-1))
    assert w[1].rows([59]).state_known
    assert not w[0].rows([3]).state_known
    torch.testing.assert_close(w.tile(slice(None), slice(2000, 2600)), dense[..., 2000:2600])
    assert w.rows(3).state_known


@pytest.mark.parametrize("mask", ["none", "causal", "empty entry", "dense"])
@pytest.mark.parametrize("name", ["scaled", "additive", "modified", "own function"])
def test_logsumexp_is_the_formula_and_differentiable(name: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_logsumexp_of_one_query_and_of_other_normalizers() -> None:
    q, k, v = (torch.randn(*size, requires_grad=True) for size in ((4,), (6, 4), (6, 3)))
    _, w = attend(q, k, v, weights=True)
    torch.testing.assert_close(w.logsumexp(), (k @ q / 2).logsumexp(0))
    _, w = attend(q, k, v, normalize=r.Sparsemax(), weights=True)
    with pytest.raises(TypeError, match="softmax's denominator; Sparsemax has none"):
        w.logsumexp()


@pytest.mark.parametrize("size", [1e8, 1e30])
def test_logsumexp_of_large_energies(size: float) -> None:
    q, k, v = inputs()
    _, w = attend(q * size, k, v, weights=True)
    torch.testing.assert_close(w.logsumexp(), (q @ k.mT * (size / 2)).logsumexp(-1))
