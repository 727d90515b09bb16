"""A softmax's sink, one more key with the value 0, against the formula with that key written out in float64."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import regard as r
from regard import attend
from regard.files import write_list
from tests.support.attention_cases import energies, inputs, masks


def _formula(e, v, sink, temperature=1.0, seen=None):
    sink = torch.as_tensor(sink, dtype=e.dtype)
    sink = sink[..., None, None] if sink.dim() else sink
    if seen is not None:
        e = e.masked_fill(~seen, -torch.inf)
    w = torch.softmax(torch.cat([e, sink.expand(*e.shape[:-1], 1)], -1) / temperature, -1)[..., :-1]
    return w @ v, w


def _sinks() -> dict[str, float | torch.Tensor]:
    return {
        "softmax1": 0.0,
        "a number": 1.5,
        "one per head": torch.randn(3, dtype=torch.float64),
        "one per entry": torch.randn(2, 1, dtype=torch.float64),
        "one per matrix": torch.randn(2, 3, dtype=torch.float64),
        "one tensor for all": torch.tensor(0.3, dtype=torch.float64),
    }


@pytest.mark.parametrize("sink", _sinks())
@pytest.mark.parametrize("backend", ["auto", "reference", "fused", "flex"])
@pytest.mark.parametrize("mask", ["none", "causal", "empty entry", "not"])
def test_is_the_formula_on_every_backend_that_takes_it(mask: str, backend: str, sink: str, monkeypatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)  # several blocks
    torch.manual_seed(0)
    q, k, v = inputs()
    rule, s = masks()[mask], _sinks()[sink]
    seen = None if rule is None else rule.dense((2, 3), 5, 7, q.device)
    for temperature in (1.0, 0.5):
        truth, expected = _formula(q @ k.mT / 2, v, s, temperature, seen)
        normalize = r.Softmax(temperature, sink=s)
        z, w = attend(q, k, v, normalize=normalize, mask=rule, backend=backend, weights=True)
        torch.testing.assert_close(z, truth)
        torch.testing.assert_close(w.dense(), expected)
        torch.testing.assert_close(w.tile(slice(1, 4), [0, 5]), expected[..., 1:4, :][..., [0, 5]])
        torch.testing.assert_close(w[1, 2].tile(2, slice(None)), expected[1, 2, 2:3])
        torch.testing.assert_close(w[:, 1:].received(), expected[:, 1:].sum(-2))
        torch.testing.assert_close(w.entropy(), -torch.xlogy(expected, expected).sum(-1))
        assert float(w.fidelity(v, z).max()) < 1e-12
        torch.testing.assert_close(w.sinks, torch.as_tensor(s).double().expand(2, 3).reshape(-1))


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("name", ["scaled", "additive", "modified", "own function"])
def test_a_learned_sink_gets_its_gradient(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.attention.backends.fused.BLOCK", 40)
    torch.manual_seed(0)
    q, k, v = inputs(grad=True)
    energy, sink = energies()[name], nn.Parameter(torch.randn(3, dtype=torch.float64))
    z, w = attend(
        q, k, v, energy=energy, normalize=r.Softmax(sink=sink), mask=r.causal(-1), backend=backend, weights=True
    )
    truth, expected = _formula(energy(q, k), v, sink, seen=r.causal(-1).dense((2, 3), 5, 7, q.device))
    direction, along = torch.randn_like(z), torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(x, (q, k, v, sink), direction, retain_graph=True) for x in (z, truth))
    torch.testing.assert_close(ours, theirs)
    ours, theirs = (torch.autograd.grad(x, (q, sink), along, retain_graph=True) for x in (w.dense(), expected))
    torch.testing.assert_close(ours, theirs)
    before = w.received()
    with torch.no_grad():
        sink.add_(1)
    torch.testing.assert_close(w.received(), before)  # the sink was copied
    with pytest.raises(RuntimeError, match="changed in place"):
        w.dense()


def test_sdpa_refuses_it() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="it has no sink"):
        attend(q, k, v, normalize=r.Softmax(sink=0.0), backend="sdpa")


@pytest.mark.parametrize(
    ("sink", "error", "words"),
    [
        ("zero", TypeError, r"sink is a number or a tensor .* \[heads\]; got str"),
        (torch.zeros(3, dtype=torch.long), TypeError, "a float, got a tensor of torch.int64"),
        (torch.zeros(4), ValueError, r"sink of shape \[4\] does not broadcast to the leading shape \[2, 3\]"),
        (torch.zeros(3, device="meta"), ValueError, "Softmax's sink is on meta"),
    ],
)
def test_wrong_sinks(sink, error, words: str) -> None:
    with pytest.raises(error, match=words):
        attend(*inputs(), normalize=r.Softmax(sink=sink))


def test_the_normalizer_alone() -> None:
    e = torch.tensor([[0.0, 0.0], [1.0, -torch.inf], [-torch.inf, -torch.inf]])
    w = r.Softmax(sink=0.0)(e)
    torch.testing.assert_close(w, torch.tensor([[1 / 3, 1 / 3], [torch.e / (1 + torch.e), 0], [0, 0]]))
    assert repr(r.Softmax(sink=0.0)) == "Softmax(temperature=1.0, sink=0.0)"
    assert r.Softmax() == r.Softmax(1.0) != r.Softmax(sink=0.0)
    assert len({r.Softmax(), r.Softmax(1.0), r.Softmax(sink=0.0)}) == 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.randn(3))

    def forward(self, q, k, v):
        return attend(q, k, v, normalize=r.Softmax(sink=self.sink), mask=r.causal())


def test_watch_and_traces_old_and_new(tmp_path) -> None:
    q, k, v = inputs(dtype=torch.float32)
    with r.watch(model := Attention()) as seen, torch.no_grad():
        model(q, k, v)
    w = seen[0].weights
    assert seen[0].fidelity().faithful
    seen.save(tmp_path / "trace")
    call = r.load_trace(tmp_path / "trace")[0]
    assert call.fidelity().faithful
    torch.testing.assert_close(call.weights.dense(), w.dense())
    torch.testing.assert_close(call.weights.sinks, w.sinks)
    # Traces written before the sink was part of the softmax have a tensor of their own for it.
    file = tmp_path / "trace" / "0000.safetensors"
    tensors = load_file(file)
    tensors["sinks"] = tensors.pop("Softmax.sink")
    save_file(tensors, file)
    description = json.loads((tmp_path / "trace" / "trace.json").read_text())
    assert description["calls"][0]["normalize"] == {"kind": "Softmax", "temperature": 1.0}
    del description["calls"][0]["sha256"]  # which they did not have either
    del description["own_sha256"]
    write_list(tmp_path / "trace" / "trace.json", description)
    torch.testing.assert_close(r.load_trace(tmp_path / "trace")[0].weights.dense(), w.dense())
