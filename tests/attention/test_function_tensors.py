"""Which tensors a function uses, so that `Weights` notice when one of them was changed in place."""

import pytest
import torch
from torch import nn

import regard as r
from regard.attention.function_tensors import function_tensors
from regard.attention.tensor_versions import ChangedInPlaceError

TABLE = torch.rand(8)


class Slopes:
    def __init__(self) -> None:
        self.slopes = torch.rand(8)

    def score(self, e, b, h, i, j):
        return e + self.slopes[j]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(1)), nn.BatchNorm1d(4)

    def in_closure(self):
        return lambda q, k: (q * self.scale) @ k.mT


def _ids(tensors) -> set[int]:
    return {id(x) for x in tensors}


def test_closures_globals_defaults_objects_and_modules() -> None:
    own, other, slopes, layer = torch.rand(3), torch.rand(3), Slopes(), Layer()
    assert _ids(function_tensors(lambda i: own[i])) == _ids([own])
    assert _ids(function_tensors(lambda i, table=own: table[i] + other[i] + TABLE[i])) == _ids([own, other, TABLE])
    assert _ids(function_tensors(slopes.score)) == _ids([slopes.slopes])
    assert _ids(function_tensors(layer)) == _ids(function_tensors(layer.in_closure())) == _ids(layer.parameters())
    assert function_tensors(torch.nn.functional.softmax) == []


@pytest.mark.parametrize("kind", ["score_mod", "bound method", "block function", "energy", "normalizer", "mask"])
def test_weights_notice_a_change(kind: str) -> None:
    table, slopes = torch.rand(8), Slopes()
    options = {
        "score_mod": lambda: {"energy": r.Modified(r.ScaledDot(), lambda e, b, h, i, j: e + table[j])},
        "bound method": lambda: {"energy": r.Modified(r.ScaledDot(), slopes.score)},
        "block function": lambda: {"energy": r.Modified(r.ScaledDot(), lambda e, batch, i, j: e + table[j])},
        "energy": lambda: {"energy": lambda q, k: (q * table[0]) @ k.mT},
        "normalizer": lambda: {"normalize": lambda e: torch.softmax(e * table[0], -1)},
        "mask": lambda: {"mask": lambda b, h, i, j: table[j] >= 0},
    }[kind]()
    q, k, v = (torch.randn(1, 8, 4) for _ in range(3))
    _, w = r.attend(q, k, v, weights=True, **options)
    w.received()
    (slopes.slopes if kind == "bound method" else table).mul_(2)
    for read in (w.received, w.dense, w.entropy):
        with pytest.raises(ChangedInPlaceError, match="changed in place"):
            read()


def test_what_a_layer_changes_beside_the_function_is_no_change() -> None:
    """The closure holds the whole layer; its batch normalization counts batches between forward and backward."""
    layer = Layer()
    q, k, v = (torch.randn(1, 600, 4) for _ in range(3))
    z = r.attend(q, k, v, energy=layer.in_closure(), backend="fused")
    layer.norm(z.flatten(0, 1)).square().sum().backward()
    assert layer.scale.grad is not None
