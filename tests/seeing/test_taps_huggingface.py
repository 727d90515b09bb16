"""Eager attention of Hugging Face: what it computed, its rounding included, in memory of O(T)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import load_trace, watch
from regard.seeing import taps
from regard.seeing.watch import capture_calls

if TYPE_CHECKING:
    from pathlib import Path

    from regard import Seen

HEADS, D = 4, 8


@pytest.mark.parametrize("length", [5, 64, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_each_forward_of_one_module_is_shown_as_it_was(dtype: torch.dtype, length: int) -> None:
    kept: list[Tensor] = []

    def function(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options: Any) -> Any:
        scores = q @ k.mT * options["scaling"] + mask
        w = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        kept.append(w)
        return (w @ v).transpose(1, 2).contiguous(), w

    module, g = nn.Module(), torch.Generator().manual_seed(0)
    mask = torch.zeros(1, 1, length, length, dtype=dtype)
    mask.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), torch.finfo(dtype).min)
    with torch.no_grad(), watch(nn.ModuleList([module])) as seen:
        for _ in range(3):
            q, k, v = torch.randn(3, 1, HEADS, length, D, generator=g).to(dtype)
            taps._attention(function, "eager", module, q, k, v, mask, scaling=0.3)
    assert seen.missed == []
    assert seen.faithful is True
    assert len(seen) == len(kept) == 3
    for call, theirs in zip(seen, kept, strict=True):
        assert call.shape == (1, HEADS, length, length)
        atol = 1e-6 if dtype == torch.float32 else 4e-3  # half a step of bfloat16
        torch.testing.assert_close(call.weights.dense(), theirs.float(), rtol=0, atol=atol)


@pytest.mark.parametrize("said_by", ["cu_seq_lens", "position_ids"])
def test_packed_rows_are_separate_sequences(said_by: str) -> None:
    """Padding-free training: flash kernels keep the sequences of a row apart."""
    ends = torch.tensor([0, 12, 13, 20])
    apart = torch.block_diag(*(torch.ones(n, n) for n in ends.diff().tolist())).tril().bool()
    packed = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends} if said_by == "cu_seq_lens" else {}
    positions = torch.cat([torch.arange(n) for n in ends.diff().tolist()])[None]

    def flash(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, **options: Any) -> Any:
        e = (q @ k.mT * options["scaling"]).masked_fill(~apart, -torch.inf)
        return ((e - e.logsumexp(-1, keepdim=True)).exp() @ v).transpose(1, 2).contiguous(), None

    module, (q, k, v) = nn.Module(), torch.randn(3, 1, HEADS, 20, D)
    with torch.no_grad(), watch(nn.ModuleList([module])) as seen:
        taps._attention(
            flash, "flash_attention_2", module, q, k, v, None, scaling=0.3, position_ids=positions, **packed
        )
    assert seen.faithful is True
    assert not bool(seen[0].weights.dense()[..., ~apart].any())


def test_a_module_is_compared_once_and_not_at_every_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []
    real = taps._agrees

    def agrees(*given: Any) -> bool:
        compared.append(real(*given))
        return compared[-1]

    def function(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, **options: Any) -> Any:
        w = F.softmax(q @ k.mT * options["scaling"], dim=-1)
        return (w @ v).transpose(1, 2).contiguous(), w

    monkeypatch.setattr(taps, "_agrees", agrees)
    module = nn.Module()
    for _ in range(3):
        with torch.no_grad(), watch(nn.ModuleList([module])) as seen:
            taps._attention(function, "eager", module, *torch.randn(3, 1, HEADS, 20, D), None, scaling=0.3)
        assert seen.faithful is True
    assert compared == [True]


IDS = torch.tensor([[3, 4, 5, 6, 7]])


class OwnCode(nn.Module):
    """A language model, followed by a module that calls the kernel itself."""

    def __init__(self) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        self.text = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
            )
        )
        self.head = OwnHead()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.text(ids, use_cache=False).logits[:, None]
        return self.head(x)


class OwnHead(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def _replace_forward(monkeypatch: pytest.MonkeyPatch, model: OwnCode, way: str) -> None:
    """The attention modules ask for their function, and then compute a softmax: instead of calling it, or before."""
    interface = pytest.importorskip("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS

    def forward(self: Any, hidden_states: Tensor, **_: Any) -> Any:
        function = interface.get_interface(self.config._attn_implementation, None)
        q, k, v = (p(hidden_states).unflatten(-1, (2, 8)).transpose(1, 2) for p in self.projections())
        w = (q @ k.mT * self.scaling).softmax(-1)
        out = (w @ v).transpose(1, 2) if way == "instead" else function(self, q, k, v, None, scaling=self.scaling)[0]
        return self.o_proj(out.flatten(-2)), None

    kind = type(model.text.model.layers[0].self_attn)
    monkeypatch.setattr(kind, "projections", lambda self: (self.q_proj, self.k_proj, self.v_proj), raising=False)
    monkeypatch.setattr(kind, "forward", forward)


@pytest.mark.parametrize("way", ["instead", "before"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_module_that_computes_a_softmax_itself_does_not_name_the_next_call(
    grad: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OwnCode()
    _replace_forward(monkeypatch, model, way)
    with torch.set_grad_enabled(grad):
        expected = model(IDS)
        with watch(model) as seen:
            assert torch.equal(model(IDS), expected)
    assert {call.name for call in seen} == {"text.model.layers.0.self_attn", "head"}
    assert seen[-1].origin.startswith("sdpa")
    assert seen.faithful or way == "before"


def test_calls_that_are_captured_reach_no_watch() -> None:
    model = OwnCode()
    with torch.no_grad(), watch(model) as seen:
        with capture_calls() as calls:
            model(IDS)
        assert len(calls) == 2
    assert not len(seen)


def test_an_export_is_no_call() -> None:
    model = OwnCode()
    with torch.no_grad(), watch(model) as seen:
        torch.export.export(model, (IDS,), strict=False)
    assert not len(seen)
    assert not seen.missed


os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 40, "pad_token_id": 0, "num_key_value_heads": 2, "head_dim": 8}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": SMALL,
    "Gemma2": {**SMALL, "sliding_window": 30, "attn_logit_softcapping": 2.0},
    "GptOss": {**SMALL, "sliding_window": 30, "num_local_experts": 2, "num_experts_per_tok": 1},
}


def eager(name: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    config._attn_implementation = "eager"
    model: nn.Module = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():  # scores that rounding moves
            weight.mul_(4 if weight.dim() > 1 else 1)
    return model.to(dtype)


def run(model: nn.Module, length: int) -> tuple[Seen, list[torch.Tensor]]:
    ids = torch.randint(3, 50, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), watch(model) as seen:
        return seen, model(input_ids=ids, output_attentions=True).attentions


def held(seen: Seen) -> int:
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for c in seen for x in c.tensors()}
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_rounded_scores_in_memory_that_grows_with_the_length(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = eager(name, dtype)
    short, long = [run(model, length) for length in (128, 512)]
    for seen, wanted in (short, long):
        assert [call.origin for call in seen] == ["eager"] * 2
        assert seen.faithful is True, seen
        for call, theirs in zip(seen, wanted, strict=True):
            error = (call.weights.tile(slice(None), slice(None)) - theirs.float()).abs().max()
            assert float(error) <= (4e-3 if dtype == torch.bfloat16 else 5e-4)  # weights are rounded too
    assert held(long[0]) <= 4.5 * held(short[0])
    short[0].save(tmp_path / "trace")
    back = load_trace(tmp_path / "trace")
    for kept, call in zip(short[0], back, strict=True):
        torch.testing.assert_close(kept.weights.entropy(), call.weights.entropy())


def test_a_padded_batch_keeps_intervals_of_each_entry() -> None:
    model = eager("Llama", torch.float32)
    ids = torch.randint(3, 50, (2, 130), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 100:] = 0
    with torch.no_grad(), watch(model) as seen:
        wanted = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert seen.faithful is True
    assert not any(x.numel() >= 130 * 130 for call in seen for x in call.tensors())
    for call, theirs in zip(seen, wanted, strict=True):
        torch.testing.assert_close(call.weights.tile(slice(None), slice(None)), theirs, atol=2e-5, rtol=0)


def test_a_mask_with_an_empty_row_or_a_gap_is_kept_as_it_is() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    x = torch.randn(1, 2, 150, 4, generator=torch.Generator().manual_seed(0))
    for row in (slice(None), slice(3, 9)):
        mask = torch.ones(150, 150, dtype=torch.bool).tril()
        mask[20, row] = False
        model = Attention()
        with torch.no_grad(), watch(model) as seen:
            model(x, mask)
        shown = seen[0].weights.tile(slice(None), slice(None))
        assert float(shown[0, 0][~mask].abs().max()) == 0
        assert any(x.numel() == 150 * 150 for x in seen[0].tensors())
