"""regard evaluate and regard compare: what they print and keep, for every task; mistakes as one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("sacrebleu", reason="needs the extra `train`")

from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.corpora import opinions, scenes
from regard.data.media import PictureReader
from regard.data.tokenizer_pair import EmptyReader
from regard.decoding import model_folders, translate
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    GridEncoderConfig,
    ShowAttendTellDecoderConfig,
)
from regard.models.classifier import Classifier
from regard.training import recipe_files, results
from regard.training.corpora import read
from regard.training.recipe import recipe_toml
from tests.support.aligned_pairs import LINKS, SOURCES, TARGETS, pair_model, pair_tokenizers
from tests.support.command_line import command_output, run_command
from tests.support.small_translators import TEXTS, save_exported_run


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return pair_tokenizers()


@pytest.fixture
def run(tokenizers: TokenizerPair, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-1"
    pair_model().save_pretrained(folder / "model")
    tokenizers.save(folder / "model")
    return folder


def write_recipe(run: Path, name: str, settings: list[str]) -> None:
    (run / "recipe.toml").write_text(recipe_toml(recipe_files.load_recipe(name, settings)), encoding="utf-8")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def test_evaluate_and_compare(run: Path, tmp_path: Path) -> None:
    file, picture = tmp_path / "pairs.tsv", tmp_path / "lengths.svg"
    file.write_text(
        "".join(f"{s}\t{t}\t{links}\n" for s, t, links in zip(SOURCES, TARGETS, LINKS, strict=True)), encoding="utf-8"
    )
    saved = tmp_path / "said.txt"
    arguments = ["--columns", "0,1,2", "--tokenised", "--beams", "1", "--save", str(saved), "--save-plot", str(picture)]
    out = command_output("evaluate", str(run), str(file), *arguments)
    for word in (
        "pairs.tsv: 4 sentences",
        "tok:13a",
        "tok:none",
        "chrF",
        "perplexity",
        "AER, layer 3",
        "11–15",
        "speed",
    ):
        assert word in out
    assert len(saved.read_text(encoding="utf-8").splitlines()) == 4
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    kept = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert kept[str(file)]["search"]["beams"] == 1
    command_output("evaluate", str(run), str(file), "--columns", "0,1", "--precision", "bfloat16")
    kept = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert set(kept) == {str(file), f"{file} (bfloat16)"}
    with pytest.raises(SystemExit, match="none of these runs was evaluated on test"):
        command_output("compare", str(run), "--data", "test")
    out = command_output("compare", str(run), str(run), "--data", str(file))
    assert out.count("tiny-1") == 2
    assert f"{kept[str(file)]['chrf']['value']:.2f}" in out
    assert f"{min(kept[str(file)]['aer'].values()):.3f}" in out


def test_a_run_is_evaluated_on_the_pairs_of_its_recipe(run: Path) -> None:
    write_recipe(run, "transformer-phrasebook", ["data.test=12", "data.valid=5", "search.beams=2"])
    out = command_output("evaluate", str(run))
    assert "test: 12 sentences" in out
    assert "AER, layer 1" in out
    assert "beams 2" in out
    out = command_output("evaluate", str(run), "--split", "valid", "--beams", "1")
    assert "valid: 5 sentences" in out
    assert "beams 1" in out
    assert list(results.load_results(run)) == ["test", "valid"]


def test_ctranslate2_is_scored_as_torch_is(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `export`")
    run, file = save_exported_run(tmp_path / "run-1"), tmp_path / "pairs.tsv"
    file.write_text("".join(f"{text}\t{text}\n" for text in filter(None, TEXTS)), encoding="utf-8")
    common = (str(file), "--beams", "1")
    command_output("evaluate", str(run), *common)
    for folder in (run, run / "ctranslate2"):
        out = command_output("evaluate", str(folder), *common, "--engine", "ctranslate2")
        assert "chrF" in out
        assert "perplexity" not in out, "CTranslate2 gives no log p(y | x)"
    kept = results.load_results(run)
    assert list(kept) == [str(file), f"{file} (ctranslate2)"]
    assert kept[str(file)].chrf == kept[f"{file} (ctranslate2)"].chrf


def test_what_cannot_be_kept_is_shown_all_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test").write_text("".join(f"{s}\t{t}\n" for s, t in zip(SOURCES, TARGETS, strict=True)), "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"--save nowhere/x\.txt cannot be written"):
        command_output("evaluate", str(run), "test", "--save", "nowhere/x.txt")

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device", "results.json")

    (tmp_path / "test").rename(tmp_path / "valid.tsv")
    with monkeypatch.context() as broken:
        broken.setattr(results, "save_result", full)
        with pytest.raises(SystemExit, match=r"cannot use results\.json: No space left"):
            command_output("evaluate", str(run), "valid.tsv", "--save", "said.txt", "--beams", "1")
    assert "valid.tsv: 4 sentences" in capsys.readouterr().out
    assert len((tmp_path / "said.txt").read_text(encoding="utf-8").splitlines()) == 4
    assert not (tmp_path / "said.txt.unfinished").exists()


def test_runs_of_one_name_are_distinguished(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(SOURCES, TARGETS, strict=True)), "utf-8")
    command_output("evaluate", str(run), str(tmp_path / "p.tsv"), "--beams", "1")
    other = shutil.copytree(run, tmp_path / "other" / run.name)
    assert {row.run for row in results.compare([run, other])} == {str(run), str(other)}
    monkeypatch.chdir(run)
    assert {row.run for row in results.compare([Path()])} == {run.name}


@pytest.fixture
def captioner(tmp_path: Path) -> Path:
    """A run of another task: a captioner that has learned nothing."""
    folder = tmp_path / "soft-1"
    sides = TokenizerPair(PictureReader(64), Tokenizer.train("word", 100, (pair.target for pair in scenes.pairs(50))))
    torch.manual_seed(0)
    tell = ShowAttendTellDecoderConfig(hidden=8, embedding=8, width=8)
    EncoderDecoder(EncoderDecoderConfig(0, len(sides.target), GridEncoderConfig(width=8), tell)).save_pretrained(
        folder / "model"
    )
    sides.save(folder / "model")
    write_recipe(folder, "soft-scenes", ["data.test=4", "data.valid=3", "search.beams=3"])
    return folder


def test_models_that_do_not_translate_are_searched_as_asked_and_their_answers_kept(
    captioner: Path, tmp_path: Path
) -> None:

    saved = tmp_path / "said.txt"
    for beams in (1, 4):
        arguments = ["--beams", str(beams), "--save", str(saved)]
        out = command_output("evaluate", str(captioner), *arguments)
        assert "test: 4 pairs, " in out
        assert f" target tokens, beams {beams}, length penalty " in out
        assert f"wrote {saved}" in out
        loaded, names = (
            model_folders.load(captioner),
            [pair.source for pair in scenes.pairs(4, split="test")],
        )
        said = translate(loaded.model, loaded.tokenizers, names, **{**loaded.search, "beams": beams})
        assert saved.read_text(encoding="utf-8") == "".join(f"{result.text}\n" for result in said)
        assert results.load_results(captioner)["test"].search["beams"] == beams
    out = command_output("evaluate", str(captioner), "--split", "valid")
    assert "valid: 3 pairs, " in out
    assert " target tokens, beams 3" in out
    assert "CIDEr-D" in out


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A run of a classifier that has learned nothing."""
    folder = tmp_path / "opinions-1"
    texts = [pair.source for pair in opinions.pairs(50)]
    sides = TokenizerPair(Tokenizer.train("word", 100, texts), LabelSet(sorted(opinions.LABELS)))
    recipe = recipe_files.load_recipe("mean-opinions", ["data.test=60", "encoder.width=8"])
    torch.manual_seed(0)
    it = Classifier(recipe.classifier(len(sides.source), 3))
    it.save_pretrained(folder / "model")
    sides.save(folder / "model")
    (folder / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    return folder


def test_a_classifier_is_scored_label_by_label(classifier: Path, tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    out = command_output("evaluate", str(classifier), "--save", str(said))
    assert "test: 60 examples\n" in out
    answers = said.read_text(encoding="utf-8").splitlines()
    result = results.load_results(classifier)["test"]
    kept = json.loads((classifier / "results.json").read_text(encoding="utf-8"))["test"]["labels"]
    assert sum(label["count"] for label in kept.values()) == 60
    assert {name: sum(label["answers"].get(name, 0) for label in kept.values()) for name in kept} == {
        name: answers.count(name) for name in kept
    }
    right = sum(label.answers.get(name, 0) for name, label in result.labels.items())
    assert result.values["accuracy"] == pytest.approx(100 * right / 60)
    for word in ("precision", "recall", "F1", "by what the model answered"):
        assert word in out
    assert "opinions-1" in command_output("compare", str(classifier))


def test_a_file_is_read_by_the_columns_of_the_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{t}\t{s}\n" for s, t in zip(SOURCES, TARGETS, strict=True)), encoding="utf-8")
    said = f"regard: columns 1 and 0 of {file} are read, as in training; --columns names others\n"
    perplexities = []
    for columns, options in (("[1, 0]", ()), ("[0, 1]", ()), ("[0, 1]", ("--columns", "1,0"))):
        (run / "recipe.toml").write_text(f"[data]\ncolumns = {columns}\n", encoding="utf-8")
        done = run_command("evaluate", str(run), str(file), "--beams", "1", *options)
        assert (done.returncode, said in done.stderr) == (0, columns == "[1, 0]"), done.stderr
        (result,) = results.load_results(run).values()
        perplexities.append(vars(result)["perplexity"])
    assert perplexities[0] == perplexities[2] != perplexities[1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ["a film\tpositive", f"{'long ' * 300}\tpositive", f"{'long ' * 260}\tnegative"],
            r"rows\.tsv:2: the text has 301 tokens, and the model was trained on at most \d+ \(data\.longest\): "
            r"shorten it, or remove the row \(2 rows are too long\)$",
        ),
        (
            ["a film\tpositive", "a film\tposetive"],
            r"rows\.tsv:2: no label is called 'posetive'; .*; correct the label, or remove the row$",
        ),
        (["text\tlabel", "a film\tpositive"], r"rows\.tsv:1: no label is called 'label'; .* with --columns$"),
    ],
    ids=["long", "label", "header"],
)
def test_a_row_that_a_classifier_cannot_be_scored_on_is_named(
    rows: list[str], message: str, classifier: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        command_output("evaluate", str(classifier), str(file))


def test_a_run_without_a_test_set_names_the_split_it_has(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "films.tsv").write_text("a film\tpositive\n" * 9, encoding="utf-8")
    data = f'data={{kind="files", root="{tmp_path}", train=["films.tsv"], valid=[], hold_out=3}}'
    write_recipe(classifier, "mean-opinions", [data, "encoder.width=8"])
    message = r"data\.test is empty; use --split valid, or give a FILE of texts and labels$"
    with pytest.raises(SystemExit, match=message):
        command_output("evaluate", str(classifier))
    assert "valid: 3 examples" in command_output("evaluate", str(classifier), "--split", "valid")


def test_a_file_of_nothing_is_reported_as_that(run: Path, classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "empty.tsv"
    for each in (run, classifier):
        file.write_text("", encoding="utf-8")
        with pytest.raises(SystemExit, match=r"empty\.tsv holds no rows"):
            command_output("evaluate", str(each), str(file))
        file.write_text("alone\n", encoding="utf-8")
        with pytest.raises(SystemExit, match=r"empty\.tsv:1: the line has 1 column, .* separate them\)$"):
            command_output("evaluate", str(each), str(file))


def test_a_language_model_is_scored_on_a_text(tmp_path: Path) -> None:

    folder, file = tmp_path / "lstm-1", tmp_path / "my.txt"
    settings = ["data.sentences=60", "data.longest=16", "training.tokens=64", "decoder.embedding=8", "decoder.width=8"]
    recipe = recipe_files.load_recipe("lstm-phrases", settings)
    (held_out,) = read(recipe.data, "test")
    sides = TokenizerPair(EmptyReader(), Tokenizer.train("character", 100, [held_out.target]))
    torch.manual_seed(0)
    EncoderDecoder(recipe.writer(0, len(sides.target))).save_pretrained(folder / "model")
    sides.save(folder / "model")
    (folder / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    tokens = len(sides.target.encode(held_out.target)) + 2
    assert f"test: {tokens:,} tokens\n" in command_output("evaluate", str(folder))
    file.write_text(held_out.target, encoding="utf-8")
    assert f"my.txt: {tokens:,} tokens\n" in command_output("evaluate", str(folder), str(file))
    result = results.load_results(folder)
    assert result[str(file)].values["loss"] == result["test"].values["loss"]
    file.write_text(held_out.target[:200], encoding="utf-8")
    command_output("evaluate", str(folder), str(file))
    assert results.load_results(folder)[str(file)].values["loss"] != result["test"].values["loss"]
    with pytest.raises(SystemExit, match=r"--columns is for models that .*; .* is one for `regard generate`"):
        command_output("evaluate", str(folder), str(file), "--columns", "0,1")
    file.write_text(" \n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"my\.txt holds no text"):
        command_output("evaluate", str(folder), str(file))


def test_runs_of_several_tasks_are_all_compared(run: Path, captioner: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(SOURCES, TARGETS, strict=True)), "utf-8")
    command_output("evaluate", str(run), str(tmp_path / "pairs.tsv"), "--beams", "1")
    command_output("evaluate", str(captioner))
    out = command_output("compare", str(run), str(captioner), "--save-plot", str(tmp_path / "a.svg"))
    assert [word for word in out.split() if word in ("tiny-1", "soft-1", "tokenised", "BLEU-4")] == [
        *("tokenised", "tiny-1"),
        *("BLEU-4", "soft-1"),
    ]
    assert (tmp_path / "a.svg").exists()
    with pytest.raises(SystemExit, match="none of these runs translates"):
        command_output("compare", str(captioner), "--save-plot", str(tmp_path / "b.svg"))
    assert not (tmp_path / "b.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save-plot", "p.png"], "--save-plot is for models that translate; .* is one for `regard caption`"),
        ([__file__, "--tokenised"], "--tokenised is for models that translate"),
        (["pairs.tsv", "--split", "valid"], "--split chooses among the run's own data"),
        (["--columns", "1,0"], "describe a FILE, and none is given"),
        (["--engine", "ctranslate2"], "ctranslate2 runs Transformers that translate; .* is none: use torch"),
    ],
)
def test_what_means_nothing_to_a_captioner_is_refused(arguments: list[str], message: str, captioner: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        command_output("evaluate", str(captioner), *arguments)
    assert not (captioner / "results.json").exists()


def test_what_means_nothing_to_a_classifier_or_a_language_model_is_refused() -> None:
    for name, option in (
        ("opinions-lstm", "--beams"),
        ("shakespeare-transformer", "--save"),
    ):
        with pytest.raises(SystemExit, match=f"{option} is for models that translate or caption or spell"):
            command_output("evaluate", name, option, "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "RUN/model"], "without a recipe"),
        (["evaluate", "RUN/model", "absent.tsv"], "absent.tsv"),
        (["compare", "RUN"], "regard evaluate"),
        (["compare", "RUN", "--save-plot", "x.gif"], "end the name in one of them"),
        (["evaluate", "nonsense"], "no model is called nonsense"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, run: Path) -> None:
    with pytest.raises(SystemExit, match=message) as left:
        command_output(*(part.replace("RUN", str(run)) for part in arguments))
    assert "\n" not in str(left.value)


def test_a_header_that_is_read_as_a_row_is_warned_of(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("source,target\nthe red car,la voiture rouge\n", encoding="utf-8")
    warning = f"regard: {file}:1 looks like a header ('source', 'target')"
    done = run_command("evaluate", str(run), str(file), "--beams", "1")
    assert (done.returncode, warning in done.stderr) == (0, True), done.stderr
    assert "--columns source,target" in done.stderr
    done = run_command("evaluate", str(run), str(file), "--beams", "1", "--columns", "source,target")
    assert (done.returncode, "header" in done.stderr) == (0, False), done.stderr
