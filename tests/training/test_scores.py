"""Scores as sacreBLEU gives them, and alignment error rates by hand."""

from __future__ import annotations

import math
import random

import pytest

from regard.data import Pair, TokenizerPair
from regard.training import scores
from regard.training.scores import copy_recall

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra `train`")


class TestScores:
    HYPOTHESES = ("Le chat est assis .", "Il pleut, dit-elle.", "Où est la gare ?")
    REFERENCES = ("Le chat est assis là .", "Il pleut, dit-elle.", "Où est donc la gare ?")

    def test_are_those_of_sacrebleu(self) -> None:
        hypotheses, references = list(self.HYPOTHESES), list(self.REFERENCES)
        plain = scores.bleu(hypotheses, references)
        tokenised = scores.bleu(hypotheses, references, tokenised=True)
        chrf = scores.chrf(hypotheses, references)
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
        bins = scores.by_length(sources, texts, texts)
        assert [(each.name, each.sentences) for each in bins] == [
            ("1–5", 2),
            ("6–10", 2),
            ("11–15", 1),
            ("56–60", 1),
            ("61+", 2),
        ]
        assert all(each.bleu == pytest.approx(100) for each in bins)
        wrong = [*texts[:-1], "tout autre chose"]
        assert scores.by_length(sources, wrong, texts)[-1].bleu < 60

    def test_a_reference_each_or_no_score(self) -> None:
        with pytest.raises(ValueError, match="1 for 2"):
            scores.bleu(["a", "b"], ["a"])
        with pytest.raises(ValueError, match="0 for 0"):
            scores.chrf([], [])


WORDS = ["a", "b", "c", "d", "e", "f"]


def test_bleu_is_sacrebleus() -> None:
    chance = random.Random(0)
    captions = [" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) for _ in range(40)]
    references = [[" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) for _ in range(3)] for _ in captions]
    streams = [list(stream) for stream in zip(*references, strict=True)]
    values = scores.caption_bleu(captions, references)
    for order in (1, 2, 3, 4):
        metric = sacrebleu.BLEU(tokenize="none", max_ngram_order=order, smooth_method="none", force=True)
        assert values[order - 1] == pytest.approx(metric.corpus_score(captions, streams).score)


def test_bleu_where_nothing_matches() -> None:
    assert scores.caption_bleu(["a b c d"], [["e f"]]) == [0, 0, 0, 0]
    assert scores.caption_bleu([""], [["e f"]]) == [0, 0, 0, 0]
    assert scores.caption_bleu(["A man, a plan."], [["a man a plan"]]) == pytest.approx(
        [100] * 4
    )  # case and points are no words


def test_cider_of_what_was_wanted_is_ten() -> None:
    texts = ["a red circle above two squares", "three blue rings left of a star", "an orange cross below it all"]
    assert scores.cider(texts, [[text] for text in texts]) == pytest.approx(10)
    assert scores.cider(texts, [[text] for text in texts[1:] + texts[:1]]) < 1


def test_cider_by_hand() -> None:
    """Two pictures, so an n-gram in one of them weighs log 2 and one in both weighs nothing."""
    captions, references = ["x a a", "x"], [["x a", "x b"], ["x c"]]
    # n = 1, first picture: c = {a: 2 log 2}, against s = {a: log 2}: min(2, 1) · 1 / (2 · 1), and one word too many;
    # against {b: log 2}: nothing in common. n = 2: c = {xa: log 2, aa: log 2}, s = {xa: log 2}: 1 / (√2 · 1). The
    # second caption holds nothing that weighs.
    near = math.exp(-1 / 72)
    expected = 10 * (near * 0.5 / 2 + near / math.sqrt(2) / 2) / 4 / 2
    assert scores.cider(captions, references) == pytest.approx(expected)


def test_chrf_takes_the_best_reference() -> None:
    good = scores.caption_chrf(["a red circle"], [["nothing alike", "a red circle"]])
    assert good == pytest.approx(100)
    assert scores.caption_chrf(["a red circle"], [["nothing alike"]]) < 40
    uneven = scores.caption_chrf(["a red circle", "two"], [["nothing alike", "a red circle"], ["two"]])
    assert uneven == pytest.approx(100)


@pytest.mark.parametrize(("captions", "references"), [([], []), (["a"], []), (["a"], [[]])])
def test_what_cannot_be_scored_is_refused(captions: list[str], references: list[list[str]]) -> None:
    for score in (scores.caption_bleu, scores.cider, scores.caption_chrf):
        with pytest.raises(ValueError, match="one or more references each"):
            score(captions, references)


@pytest.mark.parametrize("slots", [0, 20])
def test_unknown_words_of_source_and_reference_count(slots: int) -> None:
    known = [Pair("the bird sees paul", "paul voit le oiseau", 0)]
    tokenizers = TokenizerPair.train("word", 100, known, joint=True, slots=slots)
    pairs = [
        Pair("zork sees paul and zork", "zork voit paul et zork", 0),  # zork twice; paul is known
        Pair("the bird 47", "le oiseau 47", 1),
        Pair("the bird", "le oiseau", 2),
    ]
    texts = ["zork voit <unk>", "le oiseau 74", ""]
    assert copy_recall(texts, pairs, tokenizers) == pytest.approx(1 / 3)
    assert copy_recall(["zork zork zork", "47", ""], pairs, tokenizers) == 1
    assert copy_recall([""], pairs[2:], tokenizers) is None
