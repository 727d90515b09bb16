"""Dense masks of composed rules: their memory, and what masks print."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as r
from regard.attention.parts import unravel
from tests.support.attention_cases import masks


class Allocations(TorchDispatchMode):
    """The bytes of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor) and result._base is None:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


COMPOSED = [
    r.causal() & r.window(64),
    ~(r.causal() | r.window(5, offset=3)),
    r.causal() & r.documents(torch.arange(2500) // 100),
    r.causal() & r.padding([2500, 7]),
]


@pytest.mark.parametrize("mask", COMPOSED, ids=repr)
def test_no_temporary_is_larger_than_the_dense_mask(mask: r.Mask) -> None:
    """Differences of all pairs of positions took eight bytes per entry, several at a time."""
    with Allocations() as allocations:
        seen = mask.dense((2,), 2500, 2500, torch.device("cpu"))
    assert allocations.largest == math.prod(seen.shape)


def test_reprs_name_the_offset() -> None:
    assert repr(r.window(3, offset=2)) == "window(3, offset=2)"
    assert repr(r.window(3)) == "window(3)"


def test_errors_say_which_dimensions_belong_together() -> None:
    q = torch.randn(2, 3, 5, 4)
    with pytest.raises(ValueError, match="first dimensions"):
        r.attend(q, q, q, mask=r.padding([1, 2, 3]))
    with pytest.raises(ValueError, match="align with the last"):
        r.attend(q, q, q, mask=r.window(2, center=torch.zeros(2, 5)))


CPU = torch.device("cpu")


def _seen(mask: r.Mask, queries: int, keys: int, batch: tuple[int, ...] = ()) -> list:
    return mask.dense(batch, queries, keys, CPU).expand(*batch, queries, keys).int().tolist()


def test_what_each_says() -> None:
    assert _seen(r.causal(), 3, 3) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert _seen(r.causal(2), 2, 4) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert _seen(r.window(2), 3, 4) == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    assert _seen(r.causal() & r.window(2), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert _seen(r.padding([1, 3]), 1, 3, (2,)) == [[[1, 0, 0]], [[1, 1, 1]]]
    assert _seen(r.padding(2), 2, 3) == [[1, 1, 0], [1, 1, 0]]
    assert _seen(r.causal() | r.prefix(2), 3, 3) == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    assert _seen(r.documents([0, 0, 1]), 3, 3) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert _seen(~r.documents([0, 0, 1]), 3, 3) == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    assert _seen(r.window(1, center=torch.tensor([0.5, 2.0])), 2, 4) == [[1, 1, 0, 0], [0, 0, 1, 0]]
    assert _seen(r.dense(torch.tensor([[True, False]])), 1, 2) == [[1, 0]]


def test_algebra() -> None:
    a, b = r.causal(), r.window(2)
    for x, y in (
        (~(a & b), ~a | ~b),
        (~(a | b), ~a & ~b),
        (~~a, a),
        (a & b, b & a),
        (a & b | a, a),
    ):
        assert _seen(x, 6, 7) == _seen(y, 6, 7)


@pytest.mark.parametrize("name", [name for name, mask in masks().items() if mask is not None])
def test_intervals_say_the_same_as_the_rule(name: str) -> None:
    mask = masks()[name].resolve(5, 7)
    batch = unravel(torch.arange(6), (2, 3))
    i, j = torch.arange(5)[:, None], torch.arange(7)
    result = mask.bounds(batch, i, 7)
    if result is None:
        assert name in ("unordered documents", "not", "dense", "dense column", "mask_mod")
        return
    start, stop = result
    assert ((j >= start) & (j < stop)).expand(6, 5, 7).equal(mask(batch, i, j).expand(6, 5, 7))
    assert mask.dense((2, 3), 5, 7, CPU).expand(2, 3, 5, 7).equal(mask(batch, i, j).expand(6, 5, 7).view(2, 3, 5, 7))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_centers_in_half_precision_do_not_round_the_places_of_keys(kind: torch.dtype) -> None:
    center = torch.tensor([1000.0, 776.0, 2008.0, 5984.0])  # which bfloat16 and float16 have
    half, full = r.window(2, center=center.to(kind)), r.window(2, center=center)
    assert half.dense((), 4, 8192, CPU).equal(full.dense((), 4, 8192, CPU))
    start, stop = half.bounds((), torch.arange(4)[:, None], 8192)
    assert [*zip(start.flatten().tolist(), stop.flatten().tolist(), strict=True)] == [
        (999, 1002),
        (775, 778),
        (2007, 2010),
        (5983, 5986),
    ]


def test_a_mask_stays_what_it_was_made_of() -> None:
    given = [torch.tensor(x) for x in ([2, 3], [2, 3], [0, 0, 1, 1], [0, 0, 1, 1], [1, 2, 3, 0])]
    lengths, size, ids, keys, center = given
    made = [r.padding(lengths), r.prefix(size), r.documents(ids, keys), r.window(1, center=center)]
    before = [_seen(mask, 4, 4, (2,)) for mask in made]
    for tensor in given:
        tensor.add_(1)
    ids[0] = 5
    assert [_seen(mask, 4, 4, (2,)) for mask in made] == before


def test_print_draws() -> None:
    assert str(r.causal()).splitlines()[:3] == ["causal()", "█·······", "██······"]
    both = r.causal() & r.padding([2, 3])  # drawn for the first entry, whose length is 2
    assert str(both).splitlines() == ["(causal() & padding([2, 3]))", "█··", "██·", "██·"]
    assert "window(2)" in repr(~r.window(2))
    assert str(r.documents([0, 0, 1])).splitlines()[1:] == ["██·", "██·", "··█"]
    assert r.causal().draw((), 2, 3) == "█··\n██·"


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (
            r.padding([3, 3, 3]),
            r"padding has lengths of leading shape \[3\]; the attention's leading shape is \[2, 3\]",
        ),
        (r.documents([0, 1]), "ids for 2 queries, there are 5"),
        (r.documents([0] * 5, torch.zeros(6, dtype=torch.long)), "ids for 6 keys, there are 7"),
        (torch.ones(5, 6, dtype=torch.bool), r"mask of shape \[5, 6\] does not broadcast"),
        (torch.ones(7, dtype=torch.bool), r"mask of shape \[7\]"),
        (r.window(2, center=torch.zeros(4)), "one per query"),
        (r.causal() & ~r.padding([1] * 3), "padding has lengths"),
    ],
)
def test_a_mask_that_does_not_fit(mask, words: str) -> None:
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    with pytest.raises(ValueError, match=words):
        r.attend(q, k, v, mask=mask)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: r.dense(torch.zeros(3, 3)), "boolean tensor"),
        (lambda: r.padding([1.5]), "whole lengths"),
        (lambda: r.documents(torch.zeros(3)), "whole ids"),
        (lambda: r.causal() & torch.ones(3, 3, dtype=torch.bool), r"wrap a boolean tensor as dense\(tensor\)"),
    ],
)
def test_wrong_kinds(make, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


def test_causal_by_the_name_of_its_corner() -> None:
    assert _seen(r.causal("bottom-right"), 2, 4) == _seen(r.causal(2), 2, 4) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert _seen(r.causal("bottom-right"), 3, 2) == [[0, 0], [1, 0], [1, 1]]
    assert _seen(r.causal("top-left"), 2, 4) == _seen(r.causal(), 2, 4)
    assert _seen(~r.causal("bottom-right") | r.window(1), 2, 3) == [[1, 0, 1], [0, 1, 0]]
    assert str(r.causal("bottom-right")).splitlines() == [
        "causal('bottom-right')", "████····", "█████···", "██████··", "███████·", "████████"
    ]  # fmt: skip
    q, k, v = torch.randn(2, 3, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 4)
    for mask in (r.causal("bottom-right"), r.causal("bottom-right") & r.padding([7, 7])):
        for backend in ("auto", "reference", "fused", "sdpa", "flex"):
            out, w = r.attend(q, k, v, mask=mask, backend=backend, weights=True)
            torch.testing.assert_close(out, r.attend(q, k, v, mask=r.causal(4), backend="reference"))
    assert w.energies.mask.left.causal_offset == 4
    assert r.explain(q, q, q, mask=r.causal("bottom-right")).why.endswith("with its causal flag")


def test_an_offset_per_batch_entry() -> None:
    offsets = torch.tensor([0, 3])
    mask = r.causal(offsets)
    assert _seen(mask, 2, 4, (2,)) == [_seen(r.causal(0), 2, 4), _seen(r.causal(3), 2, 4)]
    offsets += 1  # copied when the mask was made
    assert repr(mask) == repr(r.causal([0, 3])) == "causal([0, 3])"
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (4, 7, 7))
    expected = torch.stack([r.attend(q[n], k[n], v[n], mask=r.causal((0, 3)[n])) for n in range(2)])
    for backend in ("auto", "reference", "fused", "sdpa", "flex"):
        torch.testing.assert_close(r.attend(q, k, v, mask=mask, backend=backend), expected)
    energy = r.Additive(4, 4, 5).double()
    expected = torch.stack([r.attend(q[n], k[n], v[n], energy=energy, mask=r.causal((0, 3)[n])) for n in range(2)])
    torch.testing.assert_close(r.attend(q, k, v, energy=energy, mask=mask, backend="fused"), expected)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "sdpa"])
@pytest.mark.parametrize("mask", [r.padding(queries=[2, 5]), r.padding([7, 3], queries=[2, 5]) & r.causal()], ids=repr)
def test_padded_queries_give_zeros(mask: r.Mask, backend: str) -> None:
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    out, w = r.attend(q, k, v, mask=mask, backend=backend, weights=True)
    assert (out[0, :, 2:] == 0).all()
    assert (out[1] != 0).all()
    assert (w.tile(slice(2, 5), slice(None))[0] == 0).all()
    assert (w.dense()[0, :, 2:] == 0).all()
    out.sum().backward()
    assert (q.grad[0, :, 2:] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: r.causal("bottom"), ValueError, '"top-left", "bottom-right" or an offset, got .bottom.'),
        (lambda: r.causal(torch.tensor([0.5])), TypeError, "causal needs whole offsets"),
        (lambda: r.causal(0.5), TypeError, "offset is a whole number"),
        (lambda: r.padding(), TypeError, "lengths of the keys, of the queries"),
        (lambda: r.padding(queries=[0.5]), TypeError, "whole lengths of the queries"),
    ],
)
def test_wrong_offsets_and_lengths(make, error, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (r.causal([0, 1, 2]), r"causal has offsets of leading shape \[3\]"),
        (r.padding(queries=[6, 1]), "from 1 to 6; there are 5 queries"),
        (r.padding(queries=[1, 1, 1]), r"padding has lengths of queries of leading shape \[3\]"),
    ],
)
def test_offsets_and_query_lengths_that_do_not_fit(mask: r.Mask, words: str) -> None:
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    with pytest.raises(ValueError, match=words):
        r.attend(q, k, k, mask=mask)
