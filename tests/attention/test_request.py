"""Bad input: one clear error naming what was given and what was expected."""

import pytest
import torch

import regard as r

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
