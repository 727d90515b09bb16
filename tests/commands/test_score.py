"""`regard score`, and the options of `regard translate` that constrain a search, as a user types them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from regard.commands import app
from regard.decoding import model_folders, translate

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "phrasebook-bahdanau-en-fr"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_translation_scores_what_the_search_says(tmp_path: Path) -> None:
    loaded = model_folders.load(MODEL)
    (best,) = translate(loaded.model, loaded.tokenizers, ["i am a student"], beams=2)
    line = run("score", "--model", MODEL, "i am a student", best.text)
    logprob, tokens = line.split()
    assert float(logprob) == pytest.approx(best.hypotheses[0].logprob, abs=1e-3)
    assert int(tokens) == len(best.tokens)
    file = tmp_path / "pairs.tsv"
    file.write_text(f"i am a student\t{best.text}\ni am from canada\tje suis\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["score", "--model", MODEL, "--file", str(file)])
    first, second = done.stdout.splitlines()
    assert first == line.strip()
    total, count = (sum(float(row.split()[n]) for row in (first, second)) for n in (0, 1))
    assert f"perplexity {math.exp(-total / count):.2f}" in done.stderr
    with pytest.raises(ValueError, match="takes a SOURCE and its TARGET"):
        run("score", "--model", MODEL, "alone")


def test_prefix_and_ensemble() -> None:
    sentence = "i am a student"
    assert run("translate", "--model", MODEL, "--prefix", "nous", sentence).startswith("nous ")
    with pytest.raises(ValueError, match="'blahaj' cannot be written"):
        run("translate", "--model", MODEL, "--prefix", "blahaj", sentence)
    plain = run("translate", "--model", MODEL, sentence)
    assert run("translate", "--model", MODEL, "--model", MODEL, sentence) == plain
    with pytest.raises(ValueError, match="tatoeba-bahdanau-en-fr has other vocabularies than phrasebook"):
        run("translate", "--model", MODEL, "--model", "tatoeba-bahdanau-en-fr", sentence)
