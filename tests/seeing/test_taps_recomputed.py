"""Linear attention has weights: the matrix of a delta rule, a state-space dual or RWKV is shown and proved."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import load_trace, watch
from regard.seeing.analysis import ablate

pytest.importorskip("transformers", reason="needs transformers")

from tests.support import tiny_architectures

pytestmark = pytest.mark.filterwarnings("ignore")


def chunk_retention(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0, initial_state: Tensor | None = None) -> Any:
    """Retention (Sun et al. 2023) as flash-linear-attention calls it, [B, T, H, D], token by token."""
    batch, length, heads, width = k.shape
    decay = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=q.dtype))
    state = q.new_zeros(batch, heads, width, v.shape[-1]) if initial_state is None else initial_state
    rows = []
    for t in range(length):
        state = decay[:, None, None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        rows.append(torch.einsum("bhd,bhde->bhe", q[:, t] * scale, state))
    return torch.stack(rows, dim=1), state


class Retention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        out, self.state = chunk_retention(x, x.roll(1, -1), x + 1, 0.5, initial_state=self.state)
        return out


def retention_weights(x: Tensor, heads: int) -> Tensor:
    length = x.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    decay = (1 - 2.0 ** (-5 - torch.arange(heads, dtype=x.dtype)))[:, None, None]
    q, k = x.transpose(1, 2), x.roll(1, -1).transpose(1, 2)
    return 0.5 * (q @ k.mT) * torch.where(distance >= 0, decay ** distance.clamp_min(0), 0)


@torch.no_grad()
def test_retention_is_the_matrix_of_its_formula(tmp_path: Any) -> None:
    x, model = torch.randn(2, 9, 3, 4), Retention()
    with watch(model) as seen:
        model(x)
    (call,) = seen
    assert call.origin == "retention"
    assert call.shape == (2, 3, 9, 9)
    torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), retention_weights(x, 3))
    assert seen.faithful
    seen.save(tmp_path / "trace")
    loaded = load_trace(tmp_path / "trace")[0].weights.tile(slice(None), slice(None))
    torch.testing.assert_close(loaded, retention_weights(x, 3))


@torch.no_grad()
def test_a_call_that_continues_from_a_state_is_named() -> None:
    model = Retention()
    with watch(model) as seen:
        model(torch.randn(1, 5, 2, 4))
        model(torch.randn(1, 1, 2, 4))
    assert len(seen) == 1
    assert seen.missed == [message for message in seen.missed if "state of earlier tokens" in message] != []


@torch.no_grad()
def test_what_was_changed_in_place_is_not_shown() -> None:
    x, model = torch.randn(1, 5, 2, 4), Retention()
    with watch(model) as seen:
        model(x)
    x.mul_(2)
    assert "changed in place" in seen[0].fidelity().remark
    assert not seen.faithful


def test_the_graph_of_the_inputs_is_not_kept() -> None:
    """A tensor that a record holds with its graph would keep the whole model's graph alive."""
    leaf, model = torch.randn(1, 5, 2, 4, requires_grad=True), Retention()
    x = leaf * 1
    with watch(model) as seen:
        model(x)
    expected, reference = retention_weights(x.detach(), 2), weakref.ref(x)
    model.state = x = None
    assert reference() is None
    torch.testing.assert_close(seen[0].weights.tile(slice(None), slice(None)), expected)


def test_the_graph_of_lightning_attention_is_not_kept() -> None:
    model, inputs = tiny_architectures.build("minimax")
    layer = next(part for part in model.modules() if hasattr(part, "slope_rate"))
    references: list[weakref.ref[Tensor]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        references.append(weakref.ref(kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]))

    layer.register_forward_pre_hook(note, with_kwargs=True)
    with torch.enable_grad(), watch(model) as seen:
        assert model(**inputs)[0].requires_grad
    assert "lightning attention" in [call.origin for call in seen]
    assert [reference() for reference in references] == [None]
    assert seen.faithful


@torch.no_grad()
def test_a_matrix_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.seeing import taps_recomputed

    model = Retention()
    with watch(model) as seen:
        model(torch.randn(1, 5, 2, 4))
    monkeypatch.setattr(taps_recomputed, "LARGEST", 100)
    with pytest.raises(ValueError, match="2 × 5 × 5 numbers of 200"):
        _ = seen[0].weights


KINDS = {
    "qwen3_next": "gated delta rule",
    "kimi_linear": "Kimi delta attention",
    "mamba2": "state-space dual",
    "rwkv": "RWKV, one head per channel",
    "minimax": "lightning attention",
}


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_linear_layers_of_transformers_are_proved(name: str) -> None:
    model, inputs = tiny_architectures.build(name)
    with watch(model) as seen:
        model(**inputs)
    linear = [call for call in seen if call.origin == KINDS[name]]
    assert linear, seen
    assert seen.faithful, seen
    for call in linear:
        w = call.weights.tile(slice(None), slice(None))
        assert not w.triu(1).any()  # no token sees a later one
        assert w.tril(-1).abs().amax() > 1e-6  # and earlier ones have weights
        if call.after is not None:
            continue
        rows, out = call.outputs()
        torch.testing.assert_close((w @ call.v)[..., rows, :], out, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_wrong_weights_of_lightning_attention_are_noticed() -> None:
    model, inputs = tiny_architectures.build("minimax")
    with watch(model) as seen:
        model(**inputs)
    layer = next(part for part in model.modules() if hasattr(part, "slope_rate"))
    layer.slope_rate = layer.slope_rate + 0.5  # the decay is read when the weights are asked for
    (fidelity,) = [call.fidelity() for call in seen if call.origin == "lightning attention"]
    assert not fidelity.lost
    assert fidelity.faithful is False


@torch.no_grad()
def test_heads_of_linear_attention_are_silenced_and_tokens_refused() -> None:
    x = torch.randn(1, 5, 2, 4)
    plain = Retention()(x)
    with ablate(model := Retention(), heads={"Retention": [1]}), watch(model) as seen:
        out = model(x)
    torch.testing.assert_close(out[:, :, 0], plain[:, :, 0])
    assert not out[:, :, 1].any()
    assert seen[0].ablated == "heads 1"
    assert seen.faithful
    with (
        pytest.raises(ValueError, match="Retention is linear attention, where tokens cannot be masked"),
        ablate(model, tokens=[0]),
    ):
        model(x)
