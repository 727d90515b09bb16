"""The lecture's worked examples, to the digit."""

import math

import pytest
import torch
from torch import nn

import regard as r
from regard import attend


def test_phone_directory() -> None:
    directory = {"Alice Jones": "555-1234", "Bob Smith": "555-5678", "Carol White": "555-9012"}
    assert r.lookup("Bob Smith", directory) == "555-5678"
    assert r.lookup("Dan Brown", directory, default="no such number") == "no such number"
    with pytest.raises(KeyError):
        r.lookup("Dan Brown", directory)


def test_phone_directory_as_tensors() -> None:
    names = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    numbers = torch.tensor([[5551234.0], [5555678.0], [5559012.0]])
    asked = torch.tensor([[0.0, 1.0], [2.0, 2.0]])
    z, w = attend(asked, names, numbers, energy=r.Exact(), normalize=r.Proportional(), weights=True)
    assert z.tolist() == [[5555678.0], [0.0]]  # the second name is in no entry: zero, not NaN
    assert w.dense().tolist() == [[0, 1, 0], [0, 0, 0]]


def test_record() -> None:
    record = {"Name": "Jane Doe", "Date of birth": "May 5th 2000", "Height": "170 cm"}
    assert r.lookup("Date of birth", record) == "May 5th 2000"


def test_boxes() -> None:
    sizes, pounds = torch.tensor([[300.0], [400.0]]), torch.tensor([[30.0], [40.0]])
    z, w = attend(
        torch.tensor([[360.0]]), sizes, pounds, energy=r.InverseDistance(), normalize=r.Proportional(), weights=True
    )
    torch.testing.assert_close(w.dense(), torch.tensor([[2 / 5, 3 / 5]]))
    assert z.item() == 36.0
    assert r.lookup(360, {300: 30, 400: 40}, energy=r.InverseDistance()) == 36.0
    assert r.lookup(300, {300: 30, 400: 40}, energy=r.InverseDistance()) == 30.0
    assert r.lookup(400, {300: 30, 400: 40}, energy=r.InverseDistance()) == 40.0


def test_look_up_of_vectors() -> None:
    table = {(0.0, 0.0): [1.0, 2.0], (2.0, 0.0): [3.0, 4.0]}
    assert r.lookup((1.0, 0.0), table, energy=r.InverseDistance()).tolist() == [2.0, 3.0]


def test_plain_self_attention() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    z = attend(x, x, x, energy=r.Dot())
    for i in range(6):
        e = torch.stack([x[i] @ x[j] for j in range(6)])
        a = torch.exp(e) / torch.exp(e).sum()
        torch.testing.assert_close(z[i], sum(a[j] * x[j] for j in range(6)))


def test_scaled_dot_product() -> None:
    q, k, v = (torch.randn(5, 64, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(attend(q, k, v), torch.softmax(q @ k.T / math.sqrt(64), dim=-1) @ v)


def test_eight_heads_of_sixty_four_side_by_side() -> None:
    x = torch.randn(1, 10, 512)
    heads = x.unflatten(-1, (8, 64)).transpose(1, 2)  # [1, 8, 10, 64]
    z = attend(heads, heads, heads).transpose(1, 2).flatten(2)
    assert z.shape == (1, 10, 512)
    torch.testing.assert_close(z[..., 64:128], attend(heads[:, 1], heads[:, 1], heads[:, 1]))


def test_masked_attention_cannot_see_the_future() -> None:
    q = k = v = torch.randn(5, 4)
    _, w = attend(q, k, v, mask=r.causal(), weights=True)
    assert (w.dense().triu(1) == 0).all()
    torch.testing.assert_close(w.dense().sum(-1), torch.ones(5))


def test_weights_from_the_input_against_weights_that_are_fixed() -> None:
    """Change one token: every output of self-attention moves, of a feed-forward layer only that token's."""
    x = torch.randn(6, 8)
    changed = x.clone()
    changed[2] += 1
    layer = nn.Linear(8, 8)
    attended = (attend(x, x, x) - attend(changed, changed, changed)).abs().amax(-1) > 1e-6
    fed = (layer(x) - layer(changed)).abs().amax(-1) > 1e-6
    assert attended.all()
    assert fed.tolist() == [False, False, True, False, False, False]


def test_kernel_regression() -> None:
    """Gaussian energies and softmax: the Nadaraya–Watson estimate."""
    x, y = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None], torch.rand(20, 1, dtype=torch.float64)
    at = torch.tensor([[0.37]], dtype=torch.float64)
    kernel = torch.exp(-((at - x.T) ** 2) / (2 * 0.1**2))
    torch.testing.assert_close(attend(at, x, y, energy=r.Gaussian(0.1)), kernel @ y / kernel.sum())


def test_the_sum_over_equal_keys_as_the_lecture_writes_it() -> None:
    """z = Σ_j 1(q = k_j) v_j: a key that occurs twice contributes both of its values."""
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    v = torch.tensor([[10.0], [20.0], [30.0], [40.0]])
    z, w = attend(q, k, v, energy=r.Exact(), normalize=r.Unnormalized(), weights=True)
    assert z.tolist() == [[40.0], [20.0], [0.0]]
    assert w.dense().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    average = attend(q, k, v, energy=r.Exact(), normalize=r.Proportional())
    assert average.tolist() == [[20.0], [20.0], [0.0]]


def test_the_sum_of_similarities_as_the_lecture_writes_it() -> None:
    """z = Σ_j similarity(q, k_j) v_j, for one query q [D]."""
    q, k, v = (torch.randn(*size, dtype=torch.float64) for size in ((4,), (6, 4), (6, 3)))
    z, w = attend(q, k, v, energy=r.Dot(), normalize=r.Unnormalized(), weights=True)
    torch.testing.assert_close(z, sum((q @ k[j]) * v[j] for j in range(6)))
    torch.testing.assert_close(w.dense(), torch.stack([q @ k[j] for j in range(6)]))


def test_look_up_of_a_key_that_occurs_twice() -> None:
    ledger = [("rent", -900), ("wages", 2000), ("food", -80), ("rent", -50), ("food", -40.5)]
    assert r.lookup("rent", ledger, normalize=r.Unnormalized()) == -950
    assert r.lookup("rent", ledger) == -475  # proportional: the average
    assert r.lookup("wages", ledger, normalize=r.Unnormalized()) == 2000
    assert r.lookup(
        2.0, [(1.0, [1.0, 0.0]), (2.0, [3.0, 4.0]), (2.0, [5.0, 6.0])], normalize=r.Unnormalized()
    ).tolist() == [8, 10]
    assert r.lookup(3.0, {1.0: 10.0, 2.0: 20.0}, energy=r.Dot(), normalize=r.Unnormalized()) == 3 * 10 + 6 * 20
    with pytest.raises(
        TypeError, match="'Bob' matches several keys, whose values are added up, and these are not numbers"
    ):
        r.lookup("Bob", [("Bob", "555"), ("Bob", "556")])
    with pytest.raises(TypeError, match=r"pairs \(key, value\); got an entry 'rent'"):
        r.lookup("rent", ["rent", "food"])


def test_nested_look_up() -> None:
    record = {"name": {"given": "Jane", "family": "Doe"}, "address": {"city": {"name": "Pittsburgh", "zip": "15213"}}}
    assert r.lookup("zip", r.lookup("city", r.lookup("address", record))) == "15213"


def test_repeated_keys_leave_out_what_does_not_match() -> None:
    """0 · ∞ is NaN, and a value that is no number is none of theirs."""
    table = [("a", 1.0), ("a", 3.0), ("b", float("inf")), ("c", "text")]
    assert r.lookup("a", table) == 2.0
    assert r.lookup("a", table, normalize=r.Unnormalized()) == 4.0
    assert r.lookup("a", [("a", float("inf")), ("a", 3.0)]) == float("inf")
    with pytest.raises(TypeError, match="not numbers: 'x'"):
        r.lookup("a", [("a", "x"), ("a", "y"), ("b", 1.0)])
