"""Scores as sacreBLEU gives them, and alignment error rates by hand."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.alignment import alignment_error

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


class TestAlignmentErrors:
    def test_by_hand(self) -> None:
        sure, possible = {(0, 0), (1, 1)}, {(2, 1)}
        found = {(0, 0), (2, 1), (3, 3)}
        # |A∩S| = 1, |A∩P| = 2 (P holds S), |A| + |S| = 5.
        assert alignment_error.error([found], [sure], [possible]) == pytest.approx(1 - 3 / 5)
        assert alignment_error.error([sure], [sure], [set()]) == 0
        # Over a corpus the counts add up; the mean of the rates would be another number.
        assert alignment_error.error([found, sure], [sure, sure], [possible, set()]) == pytest.approx(1 - 7 / 9)
        with pytest.raises(ValueError, match="not one link"):
            alignment_error.error([set()], [set()], [set()])

    def test_links_are_read(self) -> None:
        assert alignment_error.parse("0-0 12-3") == {(0, 0), (12, 3)}
        assert alignment_error.parse(None) == alignment_error.parse("") == set()
        with pytest.raises(ValueError, match="'1:2' is no alignment link"):
            alignment_error.parse("0-0 1:2")

    def test_pieces_become_words(self) -> None:
        weights = torch.tensor(
            [
                [0.1, 0.2, 0.3, 0.4],  # the first target word has two pieces
                [0.3, 0.0, 0.1, 0.6],
                [0.5, 0.2, 0.2, 0.1],
                [0.0, 0.0, 0.0, 1.0],  # </s>
            ]
        )
        # Source pieces 0 and 1 are one word; the last place is </s>, which is left out.
        whole = alignment_error.words(weights, [0, 0, 1], [0, 0, 1])
        torch.testing.assert_close(whole, torch.tensor([[0.3, 0.2], [0.7, 0.2]]))
        torch.testing.assert_close(alignment_error.words(weights.expand(2, 3, 4, 4), [0, 0, 1], [0, 0, 1])[1, 2], whole)
        assert alignment_error.link(whole) == {(0, 0), (0, 1)}
        assert alignment_error.link(torch.zeros(1, 2)) == set()
