"""Scores of captions: BLEU as sacreBLEU counts it, CIDEr-D by hand, chrF; and the pointing game."""

from __future__ import annotations

import math
import random

import pytest
import sacrebleu

from regard.training.score import caption_metrics as scores

WORDS = ["a", "b", "c", "d", "e", "f"]


def test_bleu_is_sacrebleus() -> None:
    chance = random.Random(0)
    captions = [" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) for _ in range(40)]
    references = [[" ".join(chance.choices(WORDS, k=chance.randint(4, 9))) for _ in range(3)] for _ in captions]
    streams = [list(stream) for stream in zip(*references, strict=True)]
    values = scores.bleu(captions, references)
    for order in (1, 2, 3, 4):
        metric = sacrebleu.BLEU(tokenize="none", max_ngram_order=order, smooth_method="none", force=True)
        assert values[order - 1] == pytest.approx(metric.corpus_score(captions, streams).score)


def test_bleu_where_nothing_matches() -> None:
    assert scores.bleu(["a b c d"], [["e f"]]) == [0, 0, 0, 0]
    assert scores.bleu([""], [["e f"]]) == [0, 0, 0, 0]
    assert scores.bleu(["A man, a plan."], [["a man a plan"]]) == pytest.approx(
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
    good = scores.chrf(["a red circle"], [["nothing alike", "a red circle"]])
    assert good == pytest.approx(100)
    assert scores.chrf(["a red circle"], [["nothing alike"]]) < 40
    uneven = scores.chrf(["a red circle", "two"], [["nothing alike", "a red circle"], ["two"]])
    assert uneven == pytest.approx(100)


@pytest.mark.parametrize(("captions", "references"), [([], []), (["a"], []), (["a"], [[]])])
def test_what_cannot_be_scored_is_refused(captions: list[str], references: list[list[str]]) -> None:
    for score in (scores.bleu, scores.cider, scores.chrf):
        with pytest.raises(ValueError, match="one or more references each"):
            score(captions, references)
