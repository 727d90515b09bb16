"""Which tensors a function uses, so that `Weights` notice when one of them was changed in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import regard as r
from regard.attention import Modifier
from regard.attention.energies import DistanceForm, EnergyForm
from regard.attention.parts import ChangedInPlaceError, Part, UnknownPartError, function_tensors
from regard.viewer.inside import neuron_view

if TYPE_CHECKING:
    from pathlib import Path

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


@dataclass(frozen=True)
class LaplaceForm(EnergyForm):
    """e_ij = −Σ_d |a_d − b_d| w_d"""

    weight: torch.Tensor

    def __call__(self, a, b):
        return -((a[..., :, None, :] - b[..., None, :, :]).abs() * self.weight.to(a.dtype)).sum(-1)

    def terms(self, q, k):
        return -(q - k).abs() * self.weight.to(q.dtype)


@dataclass(frozen=True)
class OverlapForm(EnergyForm):
    """e_ij = Σ_d min(a_d, b_d): nothing to set, and a short name in traces."""

    trace_key = "overlap"

    def __call__(self, a, b):
        return torch.minimum(a[..., :, None, :], b[..., None, :, :]).sum(-1)


class Laplace(r.Energy):
    def __init__(self, weight):
        self.weight = weight

    def split(self, q, k):
        return q, k, LaplaceForm(self.weight)


class Recency(Modifier):
    additive = True

    def __init__(self, slope: float, heads: torch.Tensor):
        self.slope, self.heads = slope, heads

    def __call__(self, e, batch, i, j):
        return e - self.slope * self.heads.to(e)[batch[-1]] * (i - j).abs().to(e.dtype)


class Squared(r.Normalizer):
    """w_ij = e_ij² / Σ_j e_ij²"""

    absent = 0.0

    def __init__(self, floor: float = 1e-6):
        self.floor = floor

    def __call__(self, e, generator=None):
        return self.weigh(e, self.state(e)[..., None], e)

    def state(self, e):
        return e.square().sum(-1).clamp_min(self.floor)

    def weigh(self, e, state, j):
        return e.square() / state


class EveryOther(r.Mask):
    def __init__(self, parity: torch.Tensor):
        self.parity = parity

    def __call__(self, batch, i, j):
        return (i + j) % 2 == self.parity.to(i.device)


def _own() -> dict:
    energy = r.Modified(Laplace(torch.linspace(0.5, 1.5, 8)), Recency(0.1, torch.tensor([1.0, 2.0])))
    return {"energy": energy, "normalize": Squared(), "mask": EveryOther(torch.tensor(0)) & r.causal()}


def _inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(3, 2, 12, 8) for _ in range(3))


class Attention(nn.Module):
    def __init__(self, **parts) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, q, k, v):
        return r.attend(q, k, v, **self.parts)


def _formula(q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    i, j = torch.arange(12)[:, None], torch.arange(12)
    e = -((q[..., :, None, :] - k[..., None, :, :]).abs() * torch.linspace(0.5, 1.5, 8)).sum(-1)
    e = e - 0.1 * torch.tensor([1.0, 2.0])[:, None, None] * (i - j).abs()
    e = e.masked_fill(~(((i + j) % 2 == 0) & (j <= i)), 0)
    w = e.square() / e.square().sum(-1, keepdim=True).clamp_min(1e-6)
    return w @ v, w


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
def test_attend_and_weights(backend: str) -> None:
    q, k, v = _inputs()
    out, weights = r.attend(q, k, v, **_own(), backend=backend, weights=True)
    expected, w = _formula(q, k, v)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(weights.dense(), w)
    torch.testing.assert_close(weights.tile(slice(2, 7), slice(None)), w[..., 2:7, :])
    torch.testing.assert_close(weights.received(), w.sum(-2))
    assert float(weights.fidelity(v, out).max()) < 1e-6


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_kernels_take_a_modifier_and_a_mask_and_refuse_the_rest(backend: str) -> None:
    q, k, v = _inputs()
    own = _own()
    with pytest.raises(ValueError, match="not a dot product"):
        r.attend(q, k, v, **own, backend=backend)
    modified = r.Modified(r.ScaledDot(), *own["energy"].modifiers)
    with pytest.raises(ValueError, match="softmax only, not Squared"):
        r.attend(q, k, v, energy=modified, normalize=own["normalize"], backend=backend)
    out = r.attend(q, k, v, energy=modified, mask=own["mask"], backend=backend)
    torch.testing.assert_close(out, r.attend(q, k, v, energy=modified, mask=own["mask"], backend="reference"))


class Sharper(r.Softmax):
    def __call__(self, e, generator=None):
        return super().__call__(2 * e)

    def state(self, e):
        return super().state(2 * e)

    def weigh(self, e, state, j):
        return super().weigh(2 * e, state, j)


def test_a_subclass_of_a_known_part_is_not_taken_for_it() -> None:
    q, k, v = _inputs()
    out, weights = r.attend(q, k, v, normalize=Sharper(), weights=True)
    torch.testing.assert_close(out, r.attend(q, k, v, normalize=r.Softmax(0.5)))
    torch.testing.assert_close(
        weights.entropy(), r.attend(q, k, v, normalize=r.Softmax(0.5), weights=True)[1].entropy()
    )


def test_learned_tensors_get_gradients_and_are_copied() -> None:
    q, k, v = _inputs()
    own = _own()
    factors = nn.Parameter(torch.tensor([1.0, 2.0]))
    energy = r.Modified(own["energy"].energy, Recency(0.1, factors))
    assert list(energy.parameters()) == [factors]
    out, weights = r.attend(q, k, v, energy=energy, weights=True)
    out.square().sum().backward()
    assert factors.grad is not None
    before = weights.received()
    with torch.no_grad():
        factors.add_(1)
    torch.testing.assert_close(weights.received(), before)


def test_watch_trace_and_neuron(tmp_path: Path) -> None:
    q, k, v = _inputs()
    with r.watch(model := Attention(**_own()), keep="cpu") as seen, torch.no_grad():
        model(q, k, v)
    assert seen[0].fidelity().faithful
    seen.save(tmp_path / "trace")
    call = r.load_trace(tmp_path / "trace")[0]
    assert call.fidelity().faithful
    assert isinstance(call.normalize, Squared)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), _formula(q, k, v)[1])
    terms = neuron_view(call.head(1), 5, range(12))
    assert terms["kind"] == "function"
    assert terms["normalizer"] == "Squared"
    assert terms["energy"] == pytest.approx([sum(x) for x in terms["product"]], rel=1e-5)


def test_an_unknown_class_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with r.watch(model := Attention(**_own())) as seen, torch.no_grad():
        model(*_inputs())
    seen.save(tmp_path / "trace")
    from regard.attention import parts as blocks

    known = {name: kind for name, kind in blocks._CLASSES.items() if kind is not Squared}
    monkeypatch.setattr(blocks, "_CLASSES", known)
    with pytest.raises(UnknownPartError, match=r"Squared' is no Normalizer that is defined here; import"):
        r.load_trace(tmp_path / "trace")[0].weights  # noqa: B018


@pytest.mark.parametrize("energy", [r.Gaussian(2.0), r.InverseDistance(), r.Exact()], ids=repr)
def test_distances_are_traced_and_taken_apart(tmp_path: Path, energy: r.Energy) -> None:
    q, k, v = _inputs()
    with r.watch(model := Attention(energy=energy, normalize=_rule(energy))) as seen:
        model(q, k, v)
    seen.save(tmp_path / "trace")
    call = r.load_trace(tmp_path / "trace")[0]
    torch.testing.assert_close(call.weights.received(), seen[0].weights.received())
    terms = neuron_view(call.head(0), 5, range(12))
    if energy == r.Gaussian(2.0):
        assert terms["kind"] == "distance"
        expected = -(q[0, 0, 5] - k[0, 0]).square().sum(-1) / 8
        assert terms["energy"] == pytest.approx(expected.tolist(), rel=1e-5)
    else:
        assert terms["kind"] == "function"
        assert terms["product"] is None


def _rule(energy: r.Energy) -> r.Normalizer:
    return r.Softmax() if isinstance(energy, r.Gaussian) else r.Proportional()


@pytest.mark.parametrize(
    "part",
    [
        r.SoftCap(3.0),
        r.Alibi(4, offset=2),
        r.Alibi(torch.tensor([0.5, 0.1]), offset=2),
        r.RelativeBias(torch.ones(8, 2), longest=20, offset=3),
        r.Bias(torch.ones(2, 2)),
        r.Softmax(0.5),
        r.Entmax(1.3),
        r.Hard(),
        DistanceForm(True),
        OverlapForm(),
    ],
    ids=lambda x: type(x).__name__,
)
def test_described_and_rebuilt(part: Part) -> None:
    described, tensors = part.describe(0)
    again = Part.rebuild(described, tensors, 0)
    assert type(again) is type(part)
    assert again.settings() == part.settings()
    assert [torch.equal(x, y) for x, y in zip(again.tensors(), part.tensors(), strict=True)] == [True] * len(tensors)
