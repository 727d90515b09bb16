"""Nested (jagged) batches against `attend` of each sequence alone, in float64, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import regard as r
from regard import attend
from tests.support.attention_cases import NORMALIZERS, POSITIVE, energies

LENGTHS_Q, LENGTHS_K = [3, 1, 5], [4, 6, 2]


def _jagged(lengths: list[int], *rest: int, grad: bool = False) -> Tensor:
    """[B, T, D], or [B, heads, T, D] from rest = (heads, D)."""
    values = torch.randn(sum(lengths), *rest, dtype=torch.float64, requires_grad=grad)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    return nested.transpose(1, 2) if len(rest) == 2 else nested


def _apart(x: Tensor) -> list[Tensor]:
    return list(x.unbind()) if x.dim() == 3 else [y.transpose(0, 1) for y in x.transpose(1, 2).unbind()]


def _same(got: Tensor, q: Tensor, k: Tensor, v: Tensor, **options) -> None:
    for z, *one in zip(*(_apart(x) for x in (got, q, k, v)), strict=True):
        torch.testing.assert_close(z, attend(*one, **options))


@pytest.mark.parametrize("name", [*(x for x in energies() if x not in ("modified", "biased")), *POSITIVE])
def test_every_energy(name: str) -> None:
    q, k, v = _jagged(LENGTHS_Q, 3, 4), _jagged(LENGTHS_K, 3, 4), _jagged(LENGTHS_K, 3, 6)
    energy = (energies() | POSITIVE)[name]
    normalize = r.Proportional() if name in POSITIVE else r.Softmax()
    got = attend(q, k, v, energy=energy, normalize=normalize)
    assert got.shape[0] == 3
    _same(got, q, k, v, energy=energy, normalize=normalize)


@pytest.mark.parametrize("normalize", NORMALIZERS)
@pytest.mark.parametrize("heads", [(), (2,)])
def test_every_normalizer(normalize: str, heads: tuple[int, ...]) -> None:
    q, k, v = _jagged(LENGTHS_Q, *heads, 4), _jagged(LENGTHS_K, *heads, 4), _jagged(LENGTHS_K, *heads, 6)
    _same(attend(q, k, v, normalize=NORMALIZERS[normalize]), q, k, v, normalize=NORMALIZERS[normalize])


def _every_other(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i + j) % 2 == 0


@pytest.mark.parametrize(
    "mask",
    [r.causal(), r.causal(1), r.causal("bottom-right"), r.window(2), ~r.causal() | r.prefix(1), _every_other],
    ids=["causal", "causal(1)", "bottom-right", "window", "or", "function"],
)
@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "sdpa"])
def test_masks_count_from_the_start_of_each_sequence(mask, backend: str) -> None:
    q, k, v = _jagged(LENGTHS_Q, 2, 4), _jagged(LENGTHS_K, 2, 4), _jagged(LENGTHS_K, 2, 6)
    _same(attend(q, k, v, mask=mask, backend=backend), q, k, v, mask=mask)  # type: ignore[arg-type]


def test_self_attention_keeps_the_lengths_of_its_input() -> None:
    x = _jagged(LENGTHS_Q, 2, 4)
    for mask in (None, r.causal(), r.causal("bottom-right")):
        z = attend(x, x, x, mask=mask)
        _same(z, x, x, x, mask=mask)
        _same(x + z - x, x, x, x, mask=mask)  # PyTorch adds nested tensors only where it knows their lengths equal


def test_positions_count_from_the_start_of_each_sequence() -> None:
    q, k, v = _jagged(LENGTHS_Q, 2, 4), _jagged(LENGTHS_K, 2, 4), _jagged(LENGTHS_K, 2, 6)
    energy = r.Modified(r.Rotary(), r.Alibi(2))
    _same(attend(q, k, v, energy=energy), q, k, v, energy=energy)


def test_grouped_heads() -> None:
    q, k, v = _jagged(LENGTHS_Q, 4, 4), _jagged(LENGTHS_K, 2, 4), _jagged(LENGTHS_K, 2, 6)
    got = attend(q, k, v)
    for z, a, b, c in zip(*(_apart(x) for x in (got, q, k, v)), strict=True):
        torch.testing.assert_close(z, attend(a[None], b[None], c[None])[0])


@pytest.mark.parametrize("mask", [None, r.causal()])
def test_weights_of_each_sequence(mask) -> None:
    q, k, v = _jagged(LENGTHS_Q, 2, 4), _jagged(LENGTHS_K, 2, 4), _jagged(LENGTHS_K, 2, 6)
    z, w = attend(q, k, v, mask=mask, weights=True)
    _same(z, q, k, v, mask=mask)
    for at, one in enumerate(zip(*(_apart(x) for x in (q, k, v)), strict=True)):
        want = attend(*one, mask=mask, weights=True)[1].dense()
        got = w[at].dense()
        torch.testing.assert_close(got[:, : LENGTHS_Q[at], : LENGTHS_K[at]], want)
        assert float(got.sum()) == pytest.approx(float(want.sum()))  # nothing after the end


def test_an_empty_sequence() -> None:
    q, k, v = _jagged([2, 0, 3], 2, 4), _jagged([4, 1, 0], 2, 4), _jagged([4, 1, 0], 2, 6)
    z = attend(q, k, v)
    assert torch.equal(_apart(z)[2], torch.zeros(2, 3, 6, dtype=torch.float64))  # queries without a key
    torch.testing.assert_close(_apart(z)[0], attend(*(_apart(x)[0] for x in (q, k, v))))


@pytest.mark.parametrize("backend", ["reference", "fused", "sdpa"])
def test_gradients_are_those_of_each_sequence(backend: str) -> None:
    values = [torch.randn(n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (9, 12, 12)]
    offsets_q, offsets_k = (torch.tensor([0, *n]).cumsum(0) for n in (LENGTHS_Q, LENGTHS_K))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return r.attend_packed(q, k, v, offsets_q, offsets_k, mask=r.causal(1), backend=backend)

    assert torch.autograd.gradcheck(function, values)


def test_a_nested_tensor_with_gaps() -> None:
    """`narrow` gives a nested tensor whose sequences do not follow one another."""
    full = torch.randn(3, 6, 4, dtype=torch.float64)
    start, length = torch.tensor([0, 2, 1]), torch.tensor([3, 4, 1])
    x = torch.nested.narrow(full, 1, start, length, layout=torch.jagged)
    assert x.lengths() is not None
    z = attend(x, x, x)
    for at, one in enumerate(z.unbind()):
        alone = full[at, start[at] : start[at] + length[at]]
        torch.testing.assert_close(one, attend(alone, alone, alone))


def test_it_is_watched() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x, x, x)

    x, model = _jagged(LENGTHS_Q, 2, 4), Model()
    with r.watch(model) as seen:
        model(x)
    assert seen.faithful
    assert list(seen[0].weights.dense().shape) == [3, 2, 5, 5]


def test_the_plan_is_that_of_the_padded_batch() -> None:
    x = _jagged(LENGTHS_Q, 2, 4)
    assert r.explain(x, x, x, mask=r.causal()).backend == "sdpa"


def test_what_it_cannot_take() -> None:
    x, y = _jagged(LENGTHS_Q, 2, 4), _jagged(LENGTHS_K, 2, 4)
    with pytest.raises(ValueError, match="every key needs a value"):
        attend(x, x, y)
    with pytest.raises(ValueError, match="k is not nested"):
        attend(x, torch.randn(3, 2, 5, 4, dtype=torch.float64), y)
    with pytest.raises(ValueError, match=r"transpose\(1, 2\)"):
        attend(x.transpose(1, 2), x, x)
    old = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with pytest.raises(ValueError, match=r"layout=torch\.jagged"):
        attend(old, old, old)
    with pytest.raises(ValueError, match="sequences"):
        attend(_jagged([1, 2], 2, 4), x, x)


F = torch.ones


@pytest.mark.parametrize(
    ("q", "k", "v", "error", "words"),
    [
        (F(4), F(4), F(4), ValueError, r"at least \[T, D\]: given q \[4\]"),
        (F(2, 4), F(3, 4), F(5, 4), ValueError, "k has length 3, v has length 5"),
        (F(2, 3), F(3, 4), F(3, 4), ValueError, "queries are 3 wide, keys 4. Use General"),
        (F(2, 6, 5, 4), F(2, 4, 5, 4), F(2, 4, 5, 4), ValueError, "6 query heads cannot share 4 key/value heads"),
        (F(8, 5, 4), F(2, 5, 4), F(2, 5, 4), ValueError, r"do not broadcast: given q \[8, 5, 4\]"),
        (F(2, 1, 5, 4), F(3, 1, 5, 4), F(3, 1, 5, 4), ValueError, "do not broadcast"),
        (F(2, 4).long(), F(3, 4).long(), F(3, 4).long(), TypeError, r"q is torch.int64.*Convert with .float\(\)"),
        (F(2, 4), F(3, 4).double(), F(3, 4), TypeError, "one dtype: q is torch.float32, k is torch.float64"),
        (F(2, 4), F(3, 4, device="meta"), F(3, 4), ValueError, "one device: q is on cpu, k on meta"),
        ([[1.0]], F(1, 1), F(1, 1), TypeError, "q is list"),
    ],
)
def test_shapes_types_devices(q, k, v, error, words: str) -> None:
    for call in (r.attend, r.explain):
        with pytest.raises(error, match=words):
            call(q, k, v)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"energy": "dot"}, TypeError, "energy is str"),
        ({"normalize": torch.softmax}, TypeError, "expected a normalizer such as"),
        ({"normalize": r.Softmax}, TypeError, "the class Softmax, not an instance of it"),
        ({"energy": r.ScaledDot}, TypeError, "the class ScaledDot, not an instance of it"),
        ({"mask": "causal"}, TypeError, "expected a mask such as causal"),
        ({"mask": r.causal}, TypeError, r"the function causal.*call it"),
        ({"mask": torch.zeros(2, 3)}, TypeError, r"Bias\(tensor\)"),
        ({"dropout": 1.0}, ValueError, "0 ≤ dropout < 1"),
        ({"dropout": -0.1}, ValueError, "0 ≤ dropout < 1"),
        ({"backend": "fast"}, ValueError, "expected one of"),
        ({"energy": r.Additive(5, 4, 8)}, ValueError, "made for queries 5 wide and keys 4 wide; given queries 4 wide"),
        ({"energy": r.Modified(r.Dot(), r.Bias(torch.zeros(3, 3)))}, ValueError, r"Bias of shape \[3, 3\]"),
        ({"energy": r.Modified(r.Dot(), r.Alibi(4))}, ValueError, "needs 4 heads in dimension -3"),
        ({"energy": lambda q, k: q.sum()}, ValueError, r"energy gave shape \[\]; expected \[\.\.\., 2, 3\]"),
        ({"energy": lambda q, k: q @ k.mT @ k}, ValueError, r"expected \[\.\.\., 2, 3\]"),
    ],
)
def test_settings(arguments: dict, error, words: str) -> None:
    with pytest.raises(error, match=words):
        r.attend(F(2, 4), F(3, 4), F(3, 4), **arguments)


def test_look_up_without_an_answer() -> None:
    with pytest.raises(KeyError, match="matches no key"):
        r.lookup("Zoe", {"Bob": 1})
    assert r.lookup("Zoe", {"Bob": 1}, default=None) is None
    with pytest.raises(ValueError, match="empty"):
        r.lookup("Zoe", {})
    with pytest.raises(TypeError, match=r"words can only be looked up with Exact\(\)"):
        r.lookup("Zoe", {"Bob": 1}, energy=r.Dot())
    with pytest.raises(TypeError, match="not numbers"):
        r.lookup(1.0, {1.0: "a", 2.0: "b"}, energy=r.InverseDistance())
