"""regard translate: texts, files and pipes; its options; mistakes as one line."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard import cli
from regard.data import Tokenizer, TokenizerPair
from regard.decoding import Hypothesis, Translation, model_folders, translate
from tests.support.command_line import command_output, run_command
from tests.support.small_translators import TEXTS, save_exported_run, save_run, small_translator, text_tokenizers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return text_tokenizers()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("run"))


def test_arguments(folder: Path, tokenizers: TokenizerPair) -> None:
    out = command_output("translate", "--model", str(folder), TEXTS[0], TEXTS[1])
    loaded = model_folders.load(folder)
    expected = translate(loaded.model, tokenizers, TEXTS[:2], beams=2, length_penalty=0.5)
    assert out.splitlines() == [t.text for t in expected]


def test_bfloat16() -> None:
    texts = ["I have two brothers.", "Where is the library?", "She does not like coffee."]
    for model in ("tatoeba-transformer-en-fr", "tatoeba-bahdanau-en-fr"):
        loaded = model_folders.load(model, precision="bfloat16")
        assert {x.dtype for x in loaded.model.parameters()} == {torch.bfloat16}
        common = ("translate", "--model", model, *texts)
        out = command_output(*common, "--precision", "bfloat16")
        assert out.splitlines() == [t.text for t in translate(loaded.model, loaded.tokenizers, texts, beams=5)]
        assert out == command_output(*common), "these are so clear that rounding changes nothing"


def test_ctranslate2_translates_as_torch_does(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `export`")
    run = save_exported_run(tmp_path / "run")
    common = ("translate", "--beams", "1", *TEXTS)
    out = command_output(*common, "--model", str(run))
    for folder in (run, run / "ctranslate2"):
        arguments = (*common, "--model", str(folder), "--engine", "ctranslate2")
        assert command_output(*arguments) == out


def test_bfloat16_is_for_translators_in_torch(folder: Path) -> None:
    with pytest.raises(ValueError, match="precision bfloat16 is for the engine torch"):
        model_folders.load(folder, engine="ctranslate2", precision="bfloat16")
    with pytest.raises(ValueError, match="precision bfloat16 is for translators; opinions-lstm is none"):
        model_folders.load("opinions-lstm", precision="bfloat16")


def test_a_file_a_pipe_and_arguments_say_the_same(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    common = ("translate", "--model", str(folder))
    by_file = command_output(*common, "--file", str(file))
    by_pipe = command_output(*common, stdin=file.read_text(encoding="utf-8"))
    assert by_file == by_pipe == command_output(*common, *TEXTS)
    assert by_file.count("\n") == len(TEXTS)


def test_a_tag_is_a_word_that_the_model_knows_or_not(tmp_path: Path) -> None:
    both = Tokenizer.train("bpe", 80, TEXTS)
    both.add_tags(["<2fr>", "<2es>"])
    small_translator(len(both)).save_pretrained(tmp_path / "model")
    TokenizerPair(both, both).save(tmp_path / "model")
    done = run_command("translate", "--model", str(tmp_path / "model"), "<2fr> a worm", "<2de> a worm")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("regard: sentence 2: the model does not know")


def test_the_name_of_a_file_is_no_sentence(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"{file} is a file, .* --file {file} reads its lines"):
        command_output("translate", "--model", str(folder), str(file))


def test_n_best_has_scores_that_fall(folder: Path) -> None:
    out = command_output("translate", "--model", str(folder), "--best", "4", TEXTS[0])
    values = [float(line.split("\t")[0]) for line in out.split("\n\n")[0].splitlines()]
    assert len(values) == 4
    assert values == sorted(values, reverse=True)


def test_n_best_needs_as_many_beams(folder: Path) -> None:
    with pytest.raises(SystemExit, match="--best 4 needs as many beams: --beams is 2"):
        command_output("translate", "--model", str(folder), "--best", "4", "--beams", "2", TEXTS[0])


def test_n_best_that_look_the_same_are_one(tokenizers: TokenizerPair, capsys: pytest.CaptureFixture[str]) -> None:
    from regard.commands.translate import print_translation

    texts = ["a ?", "a\u202f?", "a?", "a\u00a0?", "m²", "m2"]  # m2 is read otherwise
    hypotheses = [Hypothesis([], -1.0 - n, 0.0) for n in range(6)]
    result = Translation("a", [], texts, hypotheses, tokenizers)
    print_translation(result, 6, sampled=False)
    assert capsys.readouterr().out == "-1.0000\ta ?\n-3.0000\ta?\n-5.0000\tm²\n-6.0000\tm2\n\n"
    print_translation(result, 6, sampled=True)
    assert capsys.readouterr().out.count("\t") == 6


def test_sampling_with_a_seed_repeats(folder: Path) -> None:
    common = ("translate", "--model", str(folder), TEXTS[0], "--sample", "1.0", "--seed")
    first, again, other = (command_output(*common, seed) for seed in ("1", "1", "2"))
    assert first == again != other


def test_show_draws_every_word(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = command_output("translate", "--model", str(folder), "--show", TEXTS[0])
    header = out.splitlines()[1].split()
    assert header == [*TEXTS[0].split(), "</s>"]
    for line in out.splitlines()[2:]:
        # Of the last seven columns, each a weight between 0 and 1, rows sum to 1.
        weights = [float(x) for x in re.findall(r"\d\.\d\d|·", line)[-7:]]
        assert sum(weights) == pytest.approx(1, abs=0.04)


def test_show_passes_over_an_empty_line(folder: Path) -> None:
    common = ("translate", "--model", str(folder), "--show")
    drawn = command_output(*common, TEXTS[1])
    assert command_output(*common, TEXTS[1], "", TEXTS[1]) == drawn + "\n" + drawn


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_save_plot_writes_a_picture(kind: str, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"looked.{kind}"
    command_output("translate", "--model", str(folder), "--save-plot", str(file), TEXTS[0])
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nonsense", "a"], "no model is called nonsense"),
        (["--file", "absent.txt"], "there is no file absent.txt"),
        (["--file", "absent.txt", "a"], "not both"),
        (["--save-plot", "x.png", "a", "b"], "one sentence"),
        (["--save-plot", "x.png", " "], "one sentence"),
        (["a \udcff worm"], r"sentence 1 is not UTF-8: character 3 is '\\udcff'"),
        (["--save-plot", "x.jpg", "a"], "end the name in one of them"),
        (["--top-k", "3", "a"], "--sample"),
        (["--sample", "0", "a"], "temperature"),
        (["--device", "cuda:99", "a"], "device cuda:99 cannot be used here"),
        (["--device", "meta", "a"], "device meta cannot be used here"),
        (["--file", ""], "--file takes the name of a file, and got an empty one"),
        (["--engine", "ctranslate2", "a"], "runs Transformers that translate; .* is none: use torch"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, folder: Path) -> None:
    model_first = [] if "nonsense" in arguments else ["--model", str(folder)]
    with pytest.raises(SystemExit, match=message) as left:
        command_output("translate", *model_first, *arguments)
    assert "\n" not in str(left.value)


@pytest.mark.parametrize(("option", "number"), [("--beams", "1001"), ("--best", "1001")])
def test_numbers_that_no_memory_holds_are_refused(
    option: str, number: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        command_output("translate", "--model", str(folder), option, number, "a worm")
    assert left.value.code == 2
    assert f"'{option}': Input should be less than or equal to" in capsys.readouterr().err


def test_nothing_to_translate_is_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common, empty = ("translate", "--model", str(folder)), tmp_path / "none.txt"
    empty.write_bytes(b"")
    warning = "regard: {} is empty: there is nothing to translate\n"
    for stdin in (io.TextIOWrapper(io.BytesIO()), None):  # None: closed, as by <&-
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "argv", ["regard", *common])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        assert capsys.readouterr() == ("", warning.format("standard input"))
    monkeypatch.setattr(sys, "argv", ["regard", *common, "--file", str(empty)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert capsys.readouterr() == ("", warning.format(empty))


def test_it_asks_where_there_is_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([TEXTS[0], "", TEXTS[1]])

    def asked(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None  # Ctrl-D

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", asked)
    out = command_output("translate", "--model", str(folder))
    assert out == command_output("translate", "--model", str(folder), TEXTS[0], TEXTS[1])


def test_a_line_that_cannot_be_translated_is_named_and_the_others_are_translated(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["regard.decoding.translation"], "LONGEST", 20)
    file, common = tmp_path / "in.txt", ("translate", "--model", str(folder))
    file.write_bytes(b"a worm\n\xff\n" + b"a worm " * 30 + b"\na worm\n")
    want = command_output(*common, "a worm").strip()
    for where, arguments in ((f"{file}:", ["--file", str(file)]), ("line ", [])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        with pytest.raises(SystemExit) as left:
            command_output(*common, *arguments)
        assert left.value.code == 1
        said = capsys.readouterr()
        assert said.out.splitlines() == [want, "", "", want]
        assert f"regard: {where}2 is no text: byte 1 of the line, 0xff, is not UTF-8" in said.err
        assert f"regard: {where}3 has " in said.err
        assert said.err.count("\n") == 2


def test_a_pipe_is_answered_before_it_closes(folder: Path) -> None:
    code = "from regard.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "translate", "--model", str(folder), "--beams", "1", "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for text in TEXTS[:3]:
            process.stdin.write(text + "\n")
            process.stdin.flush()
            # Were it to wait for more input, this would never return: nothing more is written before.
            assert process.stdout.readline().endswith("\n")
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


def test_unknown_characters_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("Where is the library?\nшкола ж\n\nIt is raining.\nж\n", encoding="utf-8")
    done = run_command("translate", "--file", str(file), "--beams", "1")
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "does not know" in line]
    assert [line.partition(": the model")[0] for line in warnings] == [f"regard: {file}:2", f"regard: {file}:5"]
    assert warnings[1].endswith("the model does not know ж; what it writes for that is a guess")
    known = run_command("translate", "Where is the library?", "--beams", "1")
    assert "does not know" not in known.stderr
