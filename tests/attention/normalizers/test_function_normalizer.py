"""Normalizers given as functions, against the same formula as a part of ours or written out."""

import pytest
import torch
from torch import nn

import regard as r
from regard import attend
from regard.attention import blocked_attention
from regard.viewer.data.tile import Tile
from regard.viewer.data.tile_pyramid import TilePyramid
from tests.support.attention_cases import city_block, inputs, masks


def own_softmax(e):
    return torch.softmax(e, dim=-1)


def masked_softmax(e, mask):
    x = e.exp() * mask
    return x / x.sum(-1, keepdim=True)


def squares(e, mask):
    x = e.square() * mask
    return x / x.sum(-1, keepdim=True).clamp_min(1e-30)


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, e):
        return torch.softmax(e * self.scale, dim=-1)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
@pytest.mark.parametrize("function", [own_softmax, masked_softmax], ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask", masks())
def test_a_softmax_of_ones_own_is_the_softmax(mask: str, function, backend: str, monkeypatch) -> None:
    monkeypatch.setattr("regard.attention.blocked_attention.BLOCK", 40)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    rule = masks()[mask]
    z, w = attend(q, k, v, normalize=function, mask=rule, backend=backend, weights=True)
    truth, expected = attend(q, k, v, mask=rule, backend="reference", weights=True)
    torch.testing.assert_close(z, truth)
    torch.testing.assert_close(w.dense(), expected.dense())
    direction = torch.randn_like(z)
    ours, theirs = (torch.autograd.grad(x, (q, k, v), direction) for x in (z, truth))
    torch.testing.assert_close(ours, theirs)


def test_every_answer_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.weights.weight_blocks.BLOCK", 900)
    torch.manual_seed(0)
    q, k, v = inputs((2,), 40, 90)
    mask = r.causal(3)
    z, w = attend(q, k, v, energy=city_block, normalize=squares, mask=mask, weights=True)
    e = city_block(q, k) * mask.dense((2,), 40, 90, q.device)
    dense = e.square() / e.square().sum(-1, keepdim=True)
    torch.testing.assert_close(z, dense @ v)
    torch.testing.assert_close(w.dense(), dense)
    torch.testing.assert_close(w.tile(slice(5, 20), [70, 2, 3]), dense[:, 5:20][..., [70, 2, 3]])
    torch.testing.assert_close(w[1].tile(7, slice(2, 6)), dense[1, 7:8, 2:6])
    torch.testing.assert_close(w.entropy(), -torch.xlogy(dense, dense).sum(-1))
    torch.testing.assert_close(w.top(4).values, dense.topk(4, -1).values)
    torch.testing.assert_close(w.received(), dense.sum(-2))
    torch.testing.assert_close(w.offset(2), dense.diagonal(2, 1, 2))
    assert w.map((3, 3)).amax((-2, -1)).allclose(dense.amax((-2, -1)))
    assert float(w.fidelity(v, z).max()) < 1e-12


def test_a_learned_parameter_gets_its_gradient_and_its_change_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.blocked_attention.BLOCK", 40)
    q, k, v = inputs(grad=True)
    module = Temperature()
    for normalize in (module, lambda e: module(e)):
        z = attend(q, k, v, normalize=normalize, mask=r.causal())
        truth = attend(q * module.scale, k, v, mask=r.causal(), backend="reference")
        torch.testing.assert_close(z, truth)
        ours, theirs = (torch.autograd.grad(x.sum(), (q, module.scale)) for x in (z, truth))
        torch.testing.assert_close(ours, theirs)
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for normalize in (module, lambda e: torch.softmax(e * scale, -1)):
        _, w = attend(q, k, v, normalize=normalize, weights=True)
        w.entropy()
        with torch.no_grad():
            module.scale.add_(1)
            scale.add_(1)
        with pytest.raises(RuntimeError, match="changed in place"):
            w.entropy()


class Attention(nn.Module):
    def forward(self, q, k, v):
        return attend(q, k, v, normalize=squares, mask=r.causal())


def test_watch_and_viewer_show_it_and_a_trace_refuses_it(tmp_path) -> None:
    torch.manual_seed(0)
    q, k, v = inputs(queries=30, keys=30, dtype=torch.float32)
    with r.watch(model := Attention()) as seen:
        model(q, k, v)
    call = seen[0]
    assert call.fidelity().faithful
    w, dense = call.head(1), call.weights.dense()[0, 1]
    tile = TilePyramid(w).tile(Tile(0, 0, 30, 30, 30, 30), "max")
    torch.testing.assert_close(tile, dense)
    with pytest.raises(ValueError, match=r"FunctionNormalizer has function.*a trace cannot hold it"):
        seen.save(tmp_path / "trace")


def test_generated_steps_with_another_function_are_another_call() -> None:
    q, k, v = inputs((1, 2), 4, 4, dtype=torch.float32)

    class Steps(nn.Module):
        def forward(self, normalize, n):
            return attend(q[..., n - 1 : n, :], k[..., :n, :], v[..., :n, :], normalize=normalize)

    model = Steps()
    for functions, calls in (
        ((squares, squares), 1),
        ((squares, masked_softmax), 2),
        ((r.Softmax(), r.Softmax(2.0)), 2),
    ):
        with r.watch(model) as seen:
            for n, normalize in zip((3, 4), functions, strict=True):
                model(normalize, n)
        assert len(seen.calls) == calls


@pytest.mark.parametrize(
    ("normalize", "error", "words"),
    [
        (lambda e: e.softmax(-2), ValueError, r"must work along the last dimension, the keys, alone \(dim=-1\)"),
        (lambda e: e.sum(-1), ValueError, r"normalize gave \[.*\]; expected weights of the energies' shape"),
        (lambda e: None, ValueError, "normalize gave NoneType"),
        (lambda: 1, TypeError, r"function <lambda>.*function of \(energies\) or \(energies, mask\)"),
        (lambda a, b, c: a, TypeError, r"function of \(energies\) or \(energies, mask\)"),
        (r.Sparsemax, TypeError, "the class Sparsemax, not an instance of it"),
        (torch.softmax, TypeError, "expected a normalizer such as"),
    ],
)
def test_wrong_functions(normalize, error, words: str) -> None:
    for backend in ("auto", "reference"):
        with pytest.raises(error, match=words):
            attend(*inputs(), normalize=normalize, backend=backend)


def test_a_second_argument_with_a_default_is_the_mask_only_by_that_name() -> None:
    q, k, v = (torch.randn(5, 4) for _ in range(3))
    expected = attend(q, k, v)
    for function in (
        lambda e, temperature=1.0: (e / temperature).softmax(-1),
        lambda e, dim=-1: e.softmax(dim),
        lambda e, mask=None: e.masked_fill(~mask, -1e9).softmax(-1),
    ):
        torch.testing.assert_close(attend(q, k, v, normalize=function), expected)


def test_proportional_names_the_energy_that_was_given() -> None:
    with pytest.raises(ValueError, match="got -4;"):
        r.Proportional()(torch.tensor([[8.0, -4.0]]))


def test_a_module_is_called_once_per_block_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_attention, "BLOCK", 16)
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, e: torch.Tensor) -> torch.Tensor:
            calls.append(e.shape)
            return torch.softmax(e, -1)

    q = torch.randn(2, 8, 4)
    with torch.no_grad():
        r.attend(q, q, q, normalize=Counted(), backend="fused")
    assert len(calls) == 3 + 8  # two rows together, one of them twice alone; then 8 blocks of two rows


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_one_query_that_sees_some_keys(backend) -> None:
    q, k, v = torch.randn(3), torch.randn(7, 3), torch.randn(7, 2)
    mask = (torch.arange(7) < 6)[None]
    z = r.attend(
        q, k, v, normalize=lambda e, seen: e.masked_fill(~seen, -torch.inf).softmax(-1), mask=mask, backend=backend
    )
    torch.testing.assert_close(z, r.attend(q, k[:6], v[:6], backend="reference"))
