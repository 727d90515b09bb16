"""`regard effects` on a tiny language model."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard import cli
from regard.seeing.analysis import ablate
from regard.seeing.text_models import load_text_model

if TYPE_CHECKING:
    from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny GPT-2 with a tokenizer of words."""
    place = tmp_path_factory.mktemp("gpt2")
    (place / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    return str(place)


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["regard", "effects", *words, "--device", "cpu"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def test_effects_of_heads_are_printed_written_and_drawn(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    table, picture = tmp_path / "heads.csv", tmp_path / "heads.svg"
    words = folder, "the cat sat on", "--answer", "mat", "--instead", "dog"
    assert _run(monkeypatch, *words, "--save-table", str(table), "--save-plot", str(picture)) in (0, None)
    out = capsys.readouterr().out
    assert "logit of 'mat' less that of 'dog'" in out
    header, *rows = table.read_text().splitlines()
    assert header == "layer,head,module,metric,difference"
    model = load_text_model(folder, with_head=True)
    ids = model.encode("the cat sat on").ids[None]

    def metric() -> float:
        logits = model.model(ids).logits[0, -1]
        return float(logits[WORDS.index("mat")] - logits[WORDS.index("dog")])

    with torch.no_grad():
        before = metric()
        for row in rows:
            layer, head, _, value, difference = row.split(",")
            with ablate(model.model, heads={int(layer): [int(head)]}):
                after = metric()
            assert abs(float(value) - after) < 1e-5
            assert abs(float(difference) - (after - before)) < 1e-5
    assert picture.read_text().startswith("<?xml")


def test_tokens_and_the_likeliest_word(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, folder, "the cat sat on", "--of", "tokens") in (0, None)
    out = capsys.readouterr().out
    assert "Effects of 6 tokens by zero" in out
    assert "'cat'" in out


def test_what_cannot_be_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "needs corrupted" in str(_run(monkeypatch, folder, "the cat", "--by", "patch"))
    assert "layers × heads" in str(_run(monkeypatch, folder, "the cat", "--of", "layers", "--save-plot", "x.png"))
    assert ".csv or .parquet" in str(_run(monkeypatch, folder, "the cat", "--save-table", "x.txt"))


def test_mean_effects_over_a_file_and_a_run_that_goes_on(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("the cat sat on", "mat", "dog"), ("the dog sat on", "mat", "cat")]
    (tmp_path / "prompts.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    table, state = tmp_path / "mean.csv", str(tmp_path / "sums")
    words = folder, "--file", str(tmp_path / "prompts.tsv"), "--save-table", str(table)
    assert _run(monkeypatch, *words, "--state", state) in (0, None)
    first = table.read_text()
    assert _run(monkeypatch, *words, "--state", state) in (0, None)  # all texts are in the folder
    assert table.read_text() == first
    differences = []
    for text, answer, instead in rows:
        one = tmp_path / "one.csv"
        assert _run(monkeypatch, folder, text, "--answer", answer, "--instead", instead, "--save-table", str(one)) in (
            0,
            None,
        )
        differences.append([float(line.split(",")[-1]) for line in one.read_text().splitlines()[1:]])
    mean = [float(line.split(",")[-1]) for line in first.splitlines()[1:]]
    assert mean == pytest.approx([sum(pair) / 2 for pair in zip(*differences, strict=True)], abs=1e-12)
    (tmp_path / "prompts.tsv").write_text("the cat sat on\n")
    assert "text 1: expected a text, an answer" in str(_run(monkeypatch, *words))
    (tmp_path / "prompts.tsv").write_text("the cat sat on\tmat\nthe dog\t \n")
    assert "text 2: ' ' is no word" in str(_run(monkeypatch, *words))
    (tmp_path / "prompts.tsv").write_text("the cat sat on\tmat\n" + "the cat " * 20 + "\tmat\n")
    assert "text 2: the text has more than 32 tokens" in str(_run(monkeypatch, *words))
    assert "more than 32 tokens" in str(_run(monkeypatch, folder, "the cat " * 20, "--answer", "mat"))
    assert "for the texts of a --file" in str(_run(monkeypatch, folder, "the cat", "--state", state))


def test_a_language_model_of_regard(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, "shakespeare-transformer", "The king is", "--exact", "3") in (0, None)
    out = capsys.readouterr().out
    assert "Effects of" in out
    assert "heads by zero" in out
    assert "regard classify" in str(_run(monkeypatch, "opinions-lstm", "The king is"))
