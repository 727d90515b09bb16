"""Evaluation of translations: perplexity and alignments pair by pair, results in a file."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from regard.data import Pair, TokenizerPair
from regard.data.batch import BEGIN, END
from regard.seeing.alignment.word_alignment import best_links
from tests.support.aligned_pairs import PAIRS, TARGETS, pair_model, pair_tokenizers

pytest.importorskip("sacrebleu", reason="needs the extra `train`")


from regard.training.run import results_file
from regard.training.score import bleu
from regard.training.score.translation_evaluation import (
    alignment_errors,
    alignments,
    evaluate_translation,
    perplexity,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return pair_tokenizers()


class TestForced:
    @pytest.mark.parametrize("kind", ["transformer", "bahdanau"])
    @torch.no_grad()
    def test_pair_by_pair_is_the_same(self, kind: str, tokenizers: TokenizerPair) -> None:
        it = pair_model(kind)
        together = alignments(it, tokenizers, PAIRS)
        loss = count = 0.0
        for pair, weights in zip(PAIRS, together, strict=True):
            source = torch.tensor([[*tokenizers.source.encode(pair.source), END]])
            target = torch.tensor([[BEGIN, *tokenizers.target.encode(pair.target), END]])
            decoded = it(source, torch.tensor([source.shape[1]]), target[:, :-1], weights=True)
            logprobs = it.readout(decoded.features)[0].log_softmax(-1).gather(1, target[0, 1:, None])
            loss, count = loss - logprobs.sum().item(), count + len(logprobs)
            layers = 3 if kind == "transformer" else 1
            shape = (layers, len(pair.target.split()), len(pair.source.split()))
            assert weights.shape == shape
            # Summed over all words of the source, what is missing to 1 went to </s>.
            kept = decoded.weights.unflatten(1, (layers, -1)).mean(2)[0, :, :-1, :-1].sum(-1)  # [layers, pieces]
            words = torch.tensor(tokenizers.target.words(target[0, 1:-1].tolist()))
            for word in range(shape[1]):
                torch.testing.assert_close(weights[:, word].sum(-1), kept[:, words == word].mean(-1))
        assert perplexity(it, tokenizers, PAIRS) == pytest.approx(math.exp(loss / count), rel=1e-4)
        assert perplexity(it, tokenizers, PAIRS, tokens=1) == pytest.approx(math.exp(loss / count), rel=1e-4)
        with torch.no_grad():
            it.decoder.output.weight *= 1e6
        assert perplexity(it, tokenizers, PAIRS) == math.inf, "it is past what a float holds, and no crash"

    def test_links_that_the_model_draws_are_no_error(self, tokenizers: TokenizerPair) -> None:
        it = pair_model("bahdanau")
        drawn = [best_links(weights[0]) for weights in alignments(it, tokenizers, PAIRS)]
        gold = [
            replace(pair, alignment=" ".join(f"{i}-{j}" for i, j in links), possible=None)
            for pair, links in zip(PAIRS, drawn, strict=True)
        ]
        assert alignment_errors(it, tokenizers, gold) == {"attention": 0.0}
        assert alignment_errors(it, tokenizers, PAIRS)["attention"] > 0
        assert list(alignment_errors(pair_model(), tokenizers, PAIRS)) == ["layer 1", "layer 2", "layer 3"]

    def test_without_attention_there_is_no_alignment(self, tokenizers: TokenizerPair) -> None:
        assert alignment_errors(pair_model("seq2seq"), tokenizers, PAIRS) == {}


def test_an_evaluation_has_everything_and_survives_its_file(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    it = pair_model()
    evaluation, texts = evaluate_translation(it, tokenizers, PAIRS, beams=2)
    assert len(texts) == evaluation.sentences == len(PAIRS)
    assert evaluation.bleu == bleu.bleu(texts, TARGETS)
    assert evaluation.perplexity == perplexity(it, tokenizers, PAIRS)
    assert evaluation.best_aer == min(evaluation.aer.values())
    assert sum(each.sentences for each in evaluation.by_length) == len(PAIRS)
    assert evaluation.tokens_per_second > 0
    assert evaluation.search == {"beams": 2}
    results_file.save_result(tmp_path, "test", evaluation)
    results_file.save_result(tmp_path, "other", evaluation)
    assert results_file.load_results(tmp_path) == {"test": evaluation, "other": evaluation}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    without, _ = evaluate_translation(it, tokenizers, [replace(pair, alignment=None) for pair in PAIRS], beams=1)
    assert without.aer == {}
    with pytest.raises(ValueError, match="no pairs"):
        evaluate_translation(it, tokenizers, [])


def test_precision_and_recall_by_hand() -> None:
    from regard.training.score.label_scores import by_label

    truths, answers = ["a", "a", "a", "b", "c"], ["a", "a", "b", "a", "d"]
    result = by_label(answers, [Pair("x", truth) for truth in truths], ["d", "c", "b", "a", "e"])
    assert list(result) == ["d", "c", "b", "a"], "in the order of the model's labels; nothing is known of e"
    assert (result["a"].count, result["a"].answers) == (3, {"b": 1, "a": 2})
    assert result["a"].precision == result["a"].recall == result["a"].f1 == pytest.approx(200 / 3)
    assert (result["b"].precision, result["b"].recall, result["b"].f1) == (0, 0, 0)
    assert (result["c"].precision, result["c"].recall) == (None, 0)
    assert (result["d"].precision, result["d"].recall, result["d"].count) == (0, None, 0)


def test_a_results_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for text, message in (("{", "not JSON"), ("[]", "holds a list"), ('{"test": {"bleu": 1}}', "this version")):
        (tmp_path / "results.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            results_file.load_results(tmp_path)
