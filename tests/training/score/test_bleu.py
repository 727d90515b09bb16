"""Scores as sacreBLEU gives them, and alignment error rates by hand."""

from __future__ import annotations

import pytest

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra `train`")

from regard.training.score import bleu  # noqa: E402


class TestScores:
    HYPOTHESES = ("Le chat est assis .", "Il pleut, dit-elle.", "Où est la gare ?")
    REFERENCES = ("Le chat est assis là .", "Il pleut, dit-elle.", "Où est donc la gare ?")

    def test_are_those_of_sacrebleu(self) -> None:
        hypotheses, references = list(self.HYPOTHESES), list(self.REFERENCES)
        plain = bleu.bleu(hypotheses, references)
        tokenised = bleu.bleu(hypotheses, references, tokenised=True)
        chrf = bleu.chrf(hypotheses, references)
        assert plain.value == sacrebleu.corpus_bleu(hypotheses, [references]).score
        assert tokenised.value == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none").score
        assert chrf.value == sacrebleu.corpus_chrf(hypotheses, [references]).score
        assert plain.value != tokenised.value
        assert "tok:13a" in plain.signature
        assert "tok:none" in tokenised.signature
        assert "nc:6" in chrf.signature
        assert f"version:{sacrebleu.__version__}" in plain.signature

    def test_bins_hold_every_sentence_once(self) -> None:
        sources = ["w " * n for n in (1, 5, 6, 10, 11, 60, 61, 200)]
        texts = [f"une phrase de {i} mots , ou presque" for i in range(len(sources))]
        bins = bleu.by_length(sources, texts, texts)
        assert [(each.name, each.sentences) for each in bins] == [
            ("1–5", 2),
            ("6–10", 2),
            ("11–15", 1),
            ("56–60", 1),
            ("61+", 2),
        ]
        assert all(each.bleu == pytest.approx(100) for each in bins)
        wrong = [*texts[:-1], "tout autre chose"]
        assert bleu.by_length(sources, wrong, texts)[-1].bleu < 60

    def test_a_reference_each_or_no_score(self) -> None:
        with pytest.raises(ValueError, match="1 for 2"):
            bleu.bleu(["a", "b"], ["a"])
        with pytest.raises(ValueError, match="0 for 0"):
            bleu.chrf([], [])
