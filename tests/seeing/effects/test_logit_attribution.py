"""Direct logit attribution: parts that add up to the logit, and sums written out on small models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from regard.seeing.analysis import logit_attribution
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
