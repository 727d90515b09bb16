"""Direct logit attribution: parts that add up to the logit, and sums written out on small models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from regard.seeing.analysis import logit_attribution, logit_lens, next_tokens
from regard.seeing.attribution import record_stream, through_norm, through_projection
from tests.support.small_language_models import small_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = torch.randint(40, (3, 9), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("kind", "dtype", "budget"),
    [
        ("gpt2", torch.float64, 1e-13),
        ("gpt_neox", torch.float64, 1e-13),
        ("llama", torch.float64, 1e-6),  # its norms compute in float32 whatever the type is
        ("llama", torch.float32, 2e-6),
        ("gpt2", torch.float32, 2e-6),
        ("llama", torch.float16, 5e-3),
    ],
)
def test_the_parts_add_up_to_the_logit(kind: str, dtype: torch.dtype, budget: float) -> None:
    """Held to the sum of the sizes of the parts, of which the logit is a small difference."""
    model, tokens, minus = small_model(kind, dtype), [3, 7, 1], [0, 9, 30]
    for position in (-1, 4):
        parts = logit_attribution(model, TEXTS, tokens, minus, position=position)
        with torch.no_grad():
            logits = model(TEXTS).logits[:, position].double()
        expected = logits[range(3), tokens] - logits[range(3), minus]
        assert torch.equal(parts.logit, expected)
        size = parts.heads.abs().sum((1, 2)) + parts.mlps.abs().sum(1) + parts.embedding.abs() + 1
        assert float(((parts.total - expected).abs() / size).max()) < budget
        assert float(parts.heads.abs().max()) > 1e-2


def test_each_head_of_a_gpt2_is_the_sum_written_out() -> None:
    model = small_model("gpt2")
    parts = logit_attribution(model, {"input_ids": TEXTS}, 3)
    outputs: dict[int, Tensor] = {}
    handles = [
        block.attn.c_proj.register_forward_pre_hook(lambda module, args, n=n: outputs.update({n: args[0]}))
        for n, block in enumerate(model.transformer.h)
    ]
    with torch.no_grad():
        hidden = model(TEXTS, output_hidden_states=True).hidden_states
        norm, inputs = model.transformer.ln_f, []
        handles.append(norm.register_forward_pre_hook(lambda module, args: inputs.append(args[0][:, -1])))
        model(TEXTS)
        (last,) = inputs
        scale = (last.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        for handle in handles:
            handle.remove()
        for n, block in enumerate(model.transformer.h):
            for h in range(4):
                columns = slice(4 * h, 4 * h + 4)
                added = outputs[n][:, -1, columns] @ block.attn.c_proj.weight[columns]  # Conv1D: [in, out]
                normed = norm.weight * (added - added.mean(-1, keepdim=True)) / scale
                torch.testing.assert_close(parts.heads[:, n, h], normed @ model.lm_head.weight[3])
        start = norm.weight * (hidden[0][:, -1] - hidden[0][:, -1].mean(-1, keepdim=True)) / scale
        torch.testing.assert_close(parts.embedding, start @ model.lm_head.weight[3])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_source_tokens_add_up_to_their_head(kind: str) -> None:
    parts = logit_attribution(small_model(kind), TEXTS, [3, 7, 1], position=[8, 5, -2])
    for layer in range(3):
        for entry in range(3):
            sources = parts.sources(layer, entry)
            assert sources.shape == (4, 1, 9)
            torch.testing.assert_close(sources.total()[:, 0], parts.heads[entry, layer], rtol=1e-5, atol=1e-7)
    assert float(parts.sources(0, 1).dense()[:, 0, 6:].abs().max()) == 0  # nothing from after position 5


def test_strongest_heads_come_first() -> None:
    parts = logit_attribution(small_model("llama"), TEXTS, 3)
    mean = parts.heads.mean(0)
    (layer, head, value), second = parts.strongest(2)
    assert value == float(mean[layer, head])
    assert abs(value) == float(mean.abs().max())
    assert abs(second[2]) <= abs(value)


def test_the_table_has_every_part(tmp_path: Path) -> None:
    parts = logit_attribution(small_model("gpt2"), TEXTS, 3)
    columns = parts.table().columns
    for entry in range(3):
        values = [x for x, at in zip(columns["value"], columns["entry"], strict=True) if at == entry]
        assert sum(values) == pytest.approx(float(parts.total[entry]))
    places = zip(columns["entry"], columns["part"], columns["layer"], columns["head"], strict=True)
    assert columns["value"][list(places).index((1, "head", 2, 3))] == float(parts.heads[1, 2, 3])
    parts.save(tmp_path / "parts.csv")
    assert (tmp_path / "parts.csv").read_text().startswith("entry,part,layer,head,value\n0,constant,,,")


def test_a_model_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="norms or factors after the projection"):
        logit_attribution(small_model("gemma2"), TEXTS, 3)


def test_wrong_arguments_are_refused() -> None:
    model = small_model("llama")
    with pytest.raises(ValueError, match="below 40, the size of the vocabulary"):
        logit_attribution(model, TEXTS, 40)
    with pytest.raises(ValueError, match="one of 9 tokens"):
        logit_attribution(model, TEXTS, 1, position=9)
    with pytest.raises(ValueError, match="head=…"):
        logit_attribution(nn.Linear(2, 2), torch.zeros(1, 2), 0)


def test_the_lens_after_each_layer_is_the_output_layer_of_its_hidden_state() -> None:
    model, ids = small_model("gpt2"), torch.randint(40, (2, 6))
    lens = logit_lens(model, ids)
    with torch.no_grad():
        output = model(ids, output_hidden_states=True)
        hidden = output.hidden_states
        for n in range(3):
            expected = model.lm_head(model.transformer.ln_f(hidden[n][:, -1]))
            torch.testing.assert_close(lens[n], expected)
    torch.testing.assert_close(lens[-1], output.logits[:, -1])


def test_logits_that_the_model_scales_are_refused() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.CohereConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        logit_scale=0.0625, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, ids = transformers.CohereForCausalLM(config).eval(), torch.randint(40, (2, 6))
    with pytest.raises(ValueError, match="CohereForCausalLM changes the logits after its output layer"):
        logit_lens(model, ids)
    model.logit_scale = 1.0
    torch.testing.assert_close(logit_lens(model, ids)[-1], model(ids).logits[:, -1])


def test_next_tokens() -> None:
    probabilities, tokens = next_tokens(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    assert tokens.tolist() == [[1, 2]]
    torch.testing.assert_close(probabilities, torch.tensor([[0.0, 2.0, 1.0]]).softmax(-1)[:, [1, 2]])


@pytest.mark.parametrize(("kind", "mlp"), [("llama", "mlp"), ("gpt2", "mlp"), ("gpt_neox", "mlp")])
def test_the_parts_of_each_layer(kind: str, mlp: str) -> None:
    stream = record_stream(small_model(kind), torch.randint(40, (2, 5)))
    assert len(stream.layers) == 3
    for layer, following in zip(stream.layers, [*(x.before for x in stream.layers[1:]), stream.last], strict=True):
        assert layer.mlp.endswith(mlp)
        torch.testing.assert_close(layer.before + layer.attention + layer.rest, following)
        torch.testing.assert_close(layer.projection(layer.heads), layer.attention)


def test_logits_at_some_positions_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="logits_to_keep"):
        record_stream(small_model("llama"), {"input_ids": torch.randint(40, (2, 5)), "logits_to_keep": 1})


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.LayerNorm(6, elementwise_affine=False)])
def test_a_direction_through_a_norm_keeps_its_dot_product(norm: nn.Module) -> None:
    torch.manual_seed(0)
    norm = norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
        x, u = torch.randn(2, 4, 6, dtype=torch.float64)
        y = norm(x)
        before, offset = through_norm(norm, x, y, u)
    torch.testing.assert_close((before * x).sum(-1) + offset, (u * y).sum(-1), rtol=1e-6, atol=1e-6)


def test_what_is_no_norm_is_refused() -> None:
    x = torch.randn(2, 6)
    with pytest.raises(ValueError, match="neither a LayerNorm nor a norm by root mean squares"):
        through_norm(nn.Softmax(-1), x, x.softmax(-1), x)


def test_a_direction_through_a_projection_and_its_bias() -> None:
    projection, z, u = nn.Linear(5, 6).double(), torch.randn(3, 5).double(), torch.randn(3, 6).double()
    g, bias = through_projection(projection, 5, u)
    torch.testing.assert_close((g * z).sum(-1) + bias, (u * projection(z)).sum(-1))
