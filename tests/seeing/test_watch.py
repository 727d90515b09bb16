"""watch: every way attention is called in PyTorch is found, shown as it was computed, and left untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as imported_by_name

import regard
from regard import Modified, SoftCap, attend, causal, note, padding, watch
from regard.files import write_list

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    """Projections and one function that attends."""

    def __init__(self, function: Callable[..., Tensor], width: int = 16, heads: int = 2, shared: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, n * width // heads) for n in (heads, shared, shared))
        self.function, self.heads, self.shared = function, heads, shared

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (n, -1)).transpose(1, 2)
            for part, n in ((self.q, self.heads), (self.k, self.shared), (self.v, self.shared))
        )
        return self.function(q, k, v)


def plain(q: Tensor, k: Tensor, allowed: Tensor | None = None, bias: Tensor | float = 0.0) -> Tensor:
    """softmax(q kᵀ/√d) written out."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    e = q @ k.mT / q.shape[-1] ** 0.5 + bias
    e = e if allowed is None else e.masked_fill(~allowed, -torch.inf)
    return (e - e.logsumexp(-1, keepdim=True)).exp()  # not by softmax, which is heard


def seen_and_expected(
    function: Callable[..., Tensor], expected: Callable[..., Tensor], **sizes: int
) -> tuple[regard.Seen, Tensor]:
    model, x = Attention(function, **sizes), torch.randn(2, 6, 16)
    kept: list[Tensor] = []
    inner = model.function
    model.function = lambda q, k, v: (kept.append(expected(q, k)), inner(q, k, v))[1]
    with torch.no_grad(), watch(model) as seen:
        model(x)
    return seen, kept[0]


TRIANGLE = torch.ones(6, 6).tril().bool()
BIAS = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0))
HALF = torch.tensor([6, 3])


def flexed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: j <= i, None, None, 6, 6, device="cpu")
    return flex_attention(q, k, v, score_mod=lambda e, b, h, i, j: e + BIAS[h][i][j], block_mask=mask)  # type: ignore[return-value]


def own_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = plain(q, k, TRIANGLE) @ v
    note(q, k, v, out, mask=causal())
    return out


WAYS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "sdpa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda q, k: plain(q, k)),
    "sdpa by name": (lambda q, k, v: imported_by_name(q, k, v), lambda q, k: plain(q, k)),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k: plain(q, k, TRIANGLE),
    ),
    "booleans": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=TRIANGLE),
        lambda q, k: plain(q, k, TRIANGLE),
    ),
    "numbers": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, BIAS),
        lambda q, k: plain(q, k, bias=BIAS),
    ),
    "scale": (
        lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v, scale=0.7),
        lambda q, k: plain(q * 0.7 * 8**0.5, k),
    ),
    "flex": (flexed, lambda q, k: plain(q, k, TRIANGLE, BIAS)),
    "attend": (lambda q, k, v: attend(q, k, v, mask=causal()), lambda q, k: plain(q, k, TRIANGLE)),
    "attend, soft cap": (
        lambda q, k, v: attend(q, k, v, energy=Modified(regard.ScaledDot(), SoftCap(0.5))),
        lambda q, k: F.log_softmax(0.5 * torch.tanh(q @ k.mT / 8**0.5 / 0.5), -1).exp(),
    ),
    "attend, sparse": (
        lambda q, k, v: attend(q, k, v, normalize=regard.Sparsemax(), mask=padding(HALF)),
        lambda q, k: regard.Sparsemax()(
            (q @ k.mT / 8**0.5).masked_fill(HALF[:, None, None, None] <= torch.arange(6), -torch.inf)
        ),
    ),
    "own function, one line": (own_kernel, lambda q, k: plain(q, k, TRIANGLE)),
    "written out": (lambda q, k, v: F.softmax(q @ k.mT / 8**0.5, dim=-1) @ v, lambda q, k: plain(q, k)),
    "written out as a method": (lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v, lambda q, k: plain(q, k)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_attend_is_seen_as_it_was_computed(way: str) -> None:
    seen, expected = seen_and_expected(*WAYS[way])
    assert len(seen) == 1, seen
    assert not seen.missed
    call = seen["Attention"]
    assert float((call.weights.tile(slice(None), slice(None)) - expected).abs().max()) < 1e-6
    assert call.fidelity().faithful is True
    assert seen.faithful is True
    assert not seen.unproven


def test_shared_heads_are_kept_once() -> None:
    seen, expected = seen_and_expected(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), plain, heads=4, shared=2
    )
    assert float((seen[0].weights.dense() - expected).abs().max()) < 1e-6
    assert seen[0].v.shape[1] == 2
    assert seen[0].fidelity().faithful


# PyTorch's own modules


@pytest.mark.parametrize("mode", ["inference", "evaluation", "training"])
@pytest.mark.parametrize("weights", [True, False])
def test_multihead_attention_with_its_fast_path(mode: str, weights: bool) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True).train(mode == "training")
    x, filling = torch.randn(2, 6, 16), torch.arange(6) >= torch.tensor([[6], [4]])
    with torch.set_grad_enabled(mode != "inference"), watch(model) as seen:
        out, theirs = model(x, x, x, key_padding_mask=filling, need_weights=weights, average_attn_weights=False)
    (call,) = seen
    assert call.kind == "self"
    assert ("fast path" in call.origin) == (mode == "inference")
    assert call.fidelity().faithful
    assert call.fidelity().error is not None
    if theirs is None:
        model.eval()
        theirs = model(x, x, x, key_padding_mask=filling, average_attn_weights=False)[1]
    assert float((call.weights.tile(slice(None), slice(None)) - theirs).abs().max()) < 1e-6
    assert torch.equal(out, model(x, x, x, key_padding_mask=filling, need_weights=weights)[0]) or mode != "training"


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_a_transformer_encoder_on_its_fast_path(norm_first: bool, padded: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 6, 16)
    filling = torch.arange(6) >= torch.tensor([[6], [4]]) if padded else None
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=filling)
        with watch(model) as seen:
            out = model(x, src_key_padding_mask=filling)
    assert torch.equal(out, expected)
    assert [call.name for call in seen] == ["layers.0", "layers.1"]
    assert all("fast path" in call.origin for call in seen)
    assert all(call.fidelity().error is not None and call.fidelity().faithful for call in seen)
    with watch(model) as slow:  # with gradients PyTorch takes the slow path, through scaled_dot_product_attention
        model(x, src_key_padding_mask=filling)
    for fast, plain_ in zip(seen, slow, strict=True):
        difference = fast.weights.tile(slice(None), slice(None)) - plain_.weights.tile(slice(None), slice(None))
        assert float(difference[:, :, :4].abs().max()) < 1e-5


def test_a_transformer_decoder_has_self_and_cross_attention() -> None:
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 4, 16), torch.randn(2, 6, 16), tgt_mask=nn.Transformer.generate_square_subsequent_mask(4))
    assert [call.kind for call in seen] == ["self", "cross", "self", "cross"]
    assert seen.faithful


# Hugging Face's other implementations


def tiny_llama(implementation: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.MistralConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, sliding_window=4, pad_token_id=0, head_dim=8,
    )  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return transformers.MistralModel(config).eval()


@pytest.mark.parametrize("length", [3, 7])
def test_flash_attention_is_understood_from_its_flags(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with flash attention's conventions: padding [B, T], causal and window flags, [B, T, heads, D] out."""
    pytest.importorskip("transformers", reason="needs transformers")
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    def flash(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any) -> Any:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        seen = (j <= i) & (i - j < options["sliding_window"])
        seen = seen if mask is None else seen & mask[:, None, None].bool()
        v = v.repeat_interleave(2, dim=1)
        return (plain(q, k, seen).nan_to_num(0) @ v).transpose(1, 2), None

    AttentionInterface.register("flash_for_test", flash)
    AttentionMaskInterface.register("flash_for_test", flash_attention_mask)
    model = tiny_llama("eager")
    ids = torch.randint(3, 50, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask, output_attentions=True).attentions
        model.config._attn_implementation = "flash_for_test"
        with watch(model) as seen:
            model(ids, attention_mask=mask)
    assert seen[0].origin == "flash_for_test"
    assert seen.faithful
    difference = (seen[0].weights.dense() - wanted[0]).abs()
    difference[1, :, :2] = 0  # rows of filling
    assert float(difference.max()) < 1e-5


def test_flex_attention_through_the_interface() -> None:
    model = tiny_llama("eager")
    ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(ids, output_attentions=True).attentions
        model.set_attn_implementation("flex_attention")
        # Compiling takes half a minute; FlexAttention itself is what is seen, compiled or not.
        with torch.compiler.set_stance("force_eager"), watch(model) as seen:
            model(ids)
    assert len(seen) == 1
    assert seen.faithful
    assert float((seen[0].weights.tile(slice(None), slice(None)) - wanted[0]).abs().max()) < 1e-5


# What is said


class Stack(nn.Module):
    def __init__(self, layers: int = 3, width: int = 16) -> None:
        super().__init__()
        self.layer = nn.ModuleList(
            Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), width) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layer:
            x = x + layer(x).transpose(1, 2).flatten(2)
        return x


@pytest.mark.parametrize(("layers", "names"), [(1, [1]), ([0, 2], [0, 2]), ("layer.2", [2]), ("*.1", [1])])
def test_only_the_layers_asked_for(layers: Any, names: list[int]) -> None:
    model = Stack()
    with watch(model, layers=layers) as seen:
        model(torch.randn(1, 4, 16))
    assert [call.layer for call in seen] == names


def test_a_limit_is_kept_and_reported() -> None:
    model, x = Stack(), torch.randn(1, 64, 16)
    one = 3 * 64 * 16 * 4  # queries, keys and values of one layer
    with torch.no_grad(), watch(model, limit=2 * one + 4000) as seen:
        model(x)
    assert [call.layer for call in seen] == [0, 1]
    assert "1 calls were not kept: the limit is" in repr(seen)
    assert seen.faithful  # of those that were kept
    assert seen.complete is None
    with pytest.raises(ValueError, match="8GB"):
        watch(model, limit="a lot")


def test_a_limit_holds_while_a_text_grows() -> None:
    class EncoderDecoder(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k.clone())

    model, q, k = EncoderDecoder(), torch.randn(1, 1, 20, 64), torch.randn(1, 1, 20, 64)
    with watch(model, limit="6KB") as seen:
        for step in range(20):
            model(q[:, :, step : step + 1].clone(), k[:, :, : step + 1].clone())
    assert len(seen) == 1
    assert 3 <= len(seen[0].steps) < 10  # a step is a query, a key, a value and an output: 1 KB
    assert "were not kept" in repr(seen)
    assert seen[0].fidelity().faithful


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_kept_elsewhere_it_answers_the_same(where: str, tmp_path: Path) -> None:
    model, x = Stack(), torch.randn(1, 70, 16)
    with torch.no_grad(), watch(model) as here:
        model(x)
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept") as there:
        model(x)
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.weights.entropy(), b.weights.entropy())
        assert b.fidelity().faithful
    if where == "file":
        assert any((tmp_path / "kept").rglob("*"))
    with pytest.raises(ValueError, match="cannot be made"):
        watch(model, keep="/nowhere/at/all")
    for word in ("CPU", "cuda:0", "None", ""):
        with pytest.raises(ValueError, match='keep is "cpu", "qk" or a folder'):
            watch(model, keep=word)
    for layer in (99, "encoder.layer.99", "*.cross"):
        with pytest.raises(ValueError, match="is no depth, name or pattern of a module"):
            watch(model, layers=[layer])


def test_unfaithful_weights_are_reported() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = plain(q, k, TRIANGLE) @ v
        note(q, k, v, out)  # forgets the mask
        return out

    model = Attention(wrong)
    with watch(model) as seen:
        model(torch.randn(1, 6, 16))
    assert "NOT what was computed" in repr(seen)
    assert not seen.faithful
    rich = pytest.importorskip("rich.console")
    console = rich.Console(record=True, force_terminal=True, width=120, color_system="truecolor")
    console.print(seen)
    assert "\x1b[31m" in console.export_text(styles=True)


def compiled_method() -> nn.Module:
    model = Stack()
    model.compile(backend="eager")
    return model


def compiled_forward() -> nn.Module:
    model = Stack()
    model.forward = torch.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    return model


def compiled_part() -> nn.Module:
    model = Stack()
    model.layer[1].forward = torch.compile(model.layer[1].forward, backend="eager")  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    "make", [lambda: torch.compile(Stack(), backend="eager"), compiled_method, compiled_forward, compiled_part]
)
def test_a_compiled_model_is_refused_with_advice(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match=r"compile.*_orig_mod"):
        watch(make())
    with pytest.raises(TypeError, match=r"nn\.Module"):
        watch("bert")  # type: ignore[arg-type]


def test_a_compiled_function_that_hides_the_calls_is_mentioned() -> None:
    model, x = Stack(), torch.randn(1, 4, 16)
    function = torch.compile(model.forward, backend="eager")
    with torch.no_grad():
        function(x)
        with watch(model) as seen:
            function(x)
    assert not len(seen)
    assert "torch.compile(model.forward)" in repr(seen)


def test_a_model_without_attention_says_so() -> None:
    model = nn.Linear(3, 3)
    with watch(model) as seen:
        model(torch.randn(1, 3))
    assert "Linear called no attention" in repr(seen)
    with pytest.raises(KeyError, match=r"regard\.note"):
        seen["layer"]


def test_names_find_calls() -> None:
    model = Stack()
    with watch(model) as seen:
        model(torch.randn(1, 4, 16))
        model(torch.randn(1, 5, 16))
    assert seen["layer.1", 1].shape[-1] == 5
    with pytest.raises(KeyError, match="2 calls"):
        seen["layer.1"]
    with pytest.raises(KeyError, match=r"layer\.0"):
        seen["nothing"]
    assert seen.names == ["layer.0", "layer.1", "layer.2"]
    assert seen["layer.0", 0].head(1).shape == (4, 4)


def test_a_trace_comes_back_as_it_went(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="needs safetensors")
    models: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (Stack(), (torch.randn(2, 70, 16),)),
        (Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, BIAS)), (torch.randn(2, 6, 16),)),
        (Attention(WAYS["attend, soft cap"][0]), (torch.randn(2, 6, 16),)),
        (Attention(WAYS["attend, sparse"][0]), (torch.randn(2, 6, 16),)),
        (nn.MultiheadAttention(16, 4, batch_first=True), (torch.randn(2, 6, 16),) * 3),
    ]
    for at, (model, inputs) in enumerate(models):
        with watch(model) as seen:
            model(*inputs)
        seen.tokens = [["ein", "Wort"]]
        seen.save(tmp_path / f"trace{at}")
        back = regard.load_trace(tmp_path / f"trace{at}")
        assert back.tokens == seen.tokens
        recorded = " (recorded)" if isinstance(model, nn.MultiheadAttention) else ""
        assert back.rows() == [(*row[:-1], row[-1] + recorded) for row in seen.rows()]
        for a, b in zip(seen, back, strict=True):
            assert torch.equal(a.weights.tile(slice(None), slice(None)), b.weights.tile(slice(None), slice(None)))
    assert not list(tmp_path.glob(".trace*"))
    with pytest.raises(FileExistsError):
        seen.save(tmp_path / "trace0")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="needs safetensors")
    with pytest.raises(FileNotFoundError, match="not a trace"):
        regard.load_trace(tmp_path)
    (tmp_path / "trace.json").write_text("[]")
    with pytest.raises(ValueError, match="should be a JSON object"):
        regard.load_trace(tmp_path)
    (tmp_path / "trace.json").write_text('{"format": 2, "calls": []}')
    with pytest.raises(ValueError, match="is damaged"):
        regard.load_trace(tmp_path)
    write_list(tmp_path / "trace.json", {"format": 99, "calls": []})
    with pytest.raises(ValueError, match="format 99"):
        regard.load_trace(tmp_path)
    with watch(model := Attention(flexed)) as seen, torch.no_grad():
        model(torch.randn(1, 6, 16))
    with pytest.raises(ValueError, match="a trace cannot hold it"):
        seen.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
