"""Which tensors a function uses: closures, globals, defaults, bound methods, modules, helpers that call each other."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import regard as r
from regard.attention.function_tensors import function_tensors
from regard.attention.tensor_versions import ChangedInPlaceError

TABLE = torch.rand(8)


def _helper(i: torch.Tensor) -> torch.Tensor:
    return TABLE[i]


class Slopes:
    def __init__(self) -> None:
        self.slopes, self.unused = torch.rand(8), torch.rand(8)

    def score(self, e, b, h, i, j):
        return e + self.slopes[j]

    def __call__(self, e, b, h, i, j):
        return self.score(e, b, h, i, j)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.Linear(4, 4)

    def energy(self, q, k):
        return self.scale * (self.inner(q) @ k.mT)

    def in_closure(self):
        return lambda q, k: self.scale * q @ k.mT


def _mutual(table: torch.Tensor):
    def even(e, n):
        return e if not n else odd(e, n - 1)

    def odd(e, n):
        return even(e + table[0], n - 1)

    return lambda e, b, h, i, j: even(e, 2)


def _ids(tensors) -> set[int]:
    return {id(x) for x in tensors}


def test_closures_globals_defaults_and_helpers() -> None:
    own, other = torch.rand(8), torch.rand(8)
    assert _ids(function_tensors(lambda i: own[i])) == _ids([own])
    assert _ids(function_tensors(lambda i, table=own: table[i] + other[i])) == _ids([own, other])
    assert _ids(function_tensors(lambda i: _helper(i))) == _ids([TABLE])
    assert _ids(function_tensors(functools.partial(torch.add, own, other=other))) == _ids([own, other])
    tables = {"a": [own, (other,)]}
    assert _ids(function_tensors(lambda i: tables["a"][0][i])) == _ids([own, other])
    assert function_tensors(torch.nn.functional.softmax) == []


def test_objects_give_what_the_code_names() -> None:
    slopes, layer = Slopes(), Layer()
    assert _ids(function_tensors(slopes.score)) == _ids([slopes.slopes])
    assert _ids(function_tensors(slopes)) == _ids([slopes.slopes])
    assert _ids(function_tensors(layer.energy)) == _ids([layer.scale, *layer.inner.parameters()])
    assert _ids(function_tensors(layer.in_closure())) == _ids([layer.scale])
    assert _ids(function_tensors(lambda q: layer(q))) == _ids([*layer.parameters(), *layer.buffers()])
    assert _ids(function_tensors(layer.inner)) == _ids(layer.inner.parameters())


class NetAndBias(nn.Module):
    """A layer and its part both have an attribute `bias`."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bias = nn.Linear(8, 8), nn.Parameter(torch.zeros(8))

    def normalize(self, e):
        return torch.softmax(self.net(e) + self.bias, -1)

    def in_closure(self):
        return lambda e: torch.softmax(self.net(e) + self.bias, -1)


@pytest.mark.parametrize("kind", ["method", "self", "variable"])
def test_a_module_that_is_called_counts_as_a_whole(kind: str) -> None:
    """Its weight is used, though the code names an attribute that it has too."""
    layer, bias = NetAndBias(), torch.zeros(8)
    net, owner = layer.net, NetAndBias()
    function = {
        "method": layer.normalize,
        "self": layer.in_closure(),
        "variable": lambda e: torch.softmax(net(e) + owner.bias + bias, -1),
    }[kind]
    assert _ids(net.parameters()) <= _ids(function_tensors(function))
    q, k, v = (torch.randn(1, 8, 4) for _ in range(3))
    _, w = r.attend(q, k, v, weights=True, normalize=function)
    with torch.no_grad():
        net.weight.mul_(3)
    with pytest.raises(ChangedInPlaceError, match="changed in place"):
        w.dense()


def test_helpers_that_call_each_other() -> None:
    table = torch.rand(3)
    assert _ids(function_tensors(_mutual(table))) == _ids([table])


def _modified(function) -> dict:
    return {"energy": r.Modified(r.ScaledDot(), function)}


@pytest.mark.parametrize("kind", ["score_mod", "bound method", "block function", "energy", "normalizer", "recursive"])
def test_weights_notice_a_change(kind: str) -> None:
    table, slopes = torch.rand(8), Slopes()
    options = {
        "score_mod": lambda: _modified(lambda e, b, h, i, j: e + table[j]),
        "bound method": lambda: _modified(slopes.score),
        "block function": lambda: _modified(lambda e, batch, i, j: e + table[j]),
        "energy": lambda: {"energy": lambda q, k: (q * table[0]) @ k.mT},
        "normalizer": lambda: {"normalize": lambda e: torch.softmax(e * table[0], -1)},
        "recursive": lambda: _modified(_mutual(table)),
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
