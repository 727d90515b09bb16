"""`regard effects` on a tiny language model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from regard.seeing.analysis import ablate
from regard.seeing.text_models import load_text_model
from tests.support.command_line import command_output

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


def _run(*words: str) -> str:
    return command_output("effects", *words, "--device", "cpu")


def _refused(*words: str) -> str:
    with pytest.raises(SystemExit) as left:
        _run(*words)
    return str(left.value.code)


def test_effects_of_heads_are_printed_written_and_drawn(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    table, picture = tmp_path / "heads.csv", tmp_path / "heads.svg"
    words = folder, "the cat sat on", "--answer", "mat", "--instead", "dog"
    out = _run(*words, "--save-table", str(table), "--save-plot", str(picture))
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


def test_tokens_and_the_likeliest_word(folder: str) -> None:
    out = _run(folder, "the cat sat on", "--of", "tokens")
    assert "Effects of 6 tokens by zero" in out
    assert "'cat'" in out


def test_what_cannot_be_is_refused(folder: str) -> None:
    assert "needs corrupted" in _refused(folder, "the cat", "--by", "patch")
    assert "layers × heads" in _refused(folder, "the cat", "--of", "layers", "--save-plot", "x.png")
    assert ".csv or .parquet" in _refused(folder, "the cat", "--save-table", "x.txt")


def test_mean_effects_over_a_file_and_a_run_that_goes_on(folder: str, tmp_path: Path) -> None:
    rows = [("the cat sat on", "mat", "dog"), ("the dog sat on", "mat", "cat")]
    (tmp_path / "prompts.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    table, state = tmp_path / "mean.csv", str(tmp_path / "sums")
    words = folder, "--file", str(tmp_path / "prompts.tsv"), "--save-table", str(table)
    _run(*words, "--state", state)
    first = table.read_text()
    _run(*words, "--state", state)  # all texts are in the folder
    assert table.read_text() == first
    differences = []
    for text, answer, instead in rows:
        one = tmp_path / "one.csv"
        _run(folder, text, "--answer", answer, "--instead", instead, "--save-table", str(one))
        differences.append([float(line.split(",")[-1]) for line in one.read_text().splitlines()[1:]])
    header, *lines = first.splitlines()
    assert header.endswith("difference,standard error")
    mean = [float(line.split(",")[-2]) for line in lines]
    assert mean == pytest.approx([sum(pair) / 2 for pair in zip(*differences, strict=True)], abs=1e-12)
    errors = [float(line.split(",")[-1]) for line in lines]  # of two numbers: half of their distance
    assert errors == pytest.approx([abs(one - other) / 2 for one, other in zip(*differences, strict=True)], abs=1e-9)
    (tmp_path / "prompts.tsv").write_text("the cat sat on\n")
    assert "text 1: expected a text, an answer" in _refused(*words)
    (tmp_path / "prompts.tsv").write_text("the cat sat on\tmat\nthe dog\t \n")
    assert "text 2: ' ' is no word" in _refused(*words)
    (tmp_path / "prompts.tsv").write_text("the cat sat on\tmat\n" + "the cat " * 20 + "\tmat\n")
    assert "text 2: the text has more than 32 tokens" in _refused(*words)
    assert "more than 32 tokens" in _refused(folder, "the cat " * 20, "--answer", "mat")
    assert "for the texts of a --file" in _refused(folder, "the cat", "--state", state)


def test_a_language_model_of_regard() -> None:
    out = _run("shakespeare-transformer", "The king is", "--exact", "3")
    assert "Effects of" in out
    assert "heads by zero" in out
    assert "regard classify" in _refused("opinions-lstm", "The king is")
