"""`regard classify`, as a newcomer meets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from regard.commands import app
from regard.commands.run_models import SOUND_MODEL, TEXT_MODEL
from regard.data import LabelSet, Tokenizer, TokenizerPair
from regard.data.corpora import opinions, photos_and_spoken_digits, tones
from regard.data.media import SoundReader
from regard.decoding.model_folders import shipped
from regard.models import (
    Classifier,
    ClassifierConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    HeadConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that have learned nothing, with all that the command needs."""
    made = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    texts = [pair.source for pair in opinions.pairs(200)]
    words = TokenizerPair(Tokenizer.train("bpe", 300, texts, lowercase=True), LabelSet(opinions.LABELS))
    reads = RecurrentEncoderConfig(embedding=8, width=8)
    for how in ("attention", "last", "max"):
        head = HeadConfig(how, hidden=8)
        Classifier(ClassifierConfig(len(words.source), 3, reads, head)).save_pretrained(made / how)
        words.save(made / how)
    hears = RecurrentEncoderConfig(reads="sound", embedding=8, width=8)
    sounds = TokenizerPair(SoundReader(), LabelSet([str(n) for n in range(10)]))
    Classifier(ClassifierConfig(0, 10, hears, HeadConfig(hidden=8))).save_pretrained(made / "sound")
    sounds.save(made / "sound")
    apart = TokenizerPair(Tokenizer.train("word", 300, texts), LabelSet(opinions.LABELS))
    Classifier(ClassifierConfig(len(apart.source), 3, reads, HeadConfig(hidden=8))).save_pretrained(made / "words")
    apart.save(made / "words")
    letters = TokenizerPair(SoundReader(), Tokenizer.train("character", 40, tones.SHAPES))
    decoder = RecurrentDecoderConfig(embedding=8, width=8)
    EncoderDecoder(EncoderDecoderConfig(0, len(letters.target), hears, decoder)).save_pretrained(made / "spell")
    letters.save(made / "spell")
    blind = RecurrentDecoderConfig(attention="none", embedding=8, width=8)
    EncoderDecoder(EncoderDecoderConfig(0, len(letters.target), hears, blind)).save_pretrained(made / "spell-blind")
    letters.save(made / "spell-blind")
    Classifier(ClassifierConfig(0, 10, hears, HeadConfig("last"))).save_pretrained(made / "sound-last")
    sounds.save(made / "sound-last")
    return made


def run(*arguments: object, stdin: bytes | None = None) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["classify", *(str(one) for one in arguments)], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_a_text_is_named_and_its_words_shaded(folder: Path) -> None:
    code, output, _ = run("The soup was not bad!", "--model", folder / "attention")
    first, words = output.splitlines()
    assert code == 0
    shares = [part.rsplit(" ", 1) for part in first.split("  ")]
    assert {label for label, _ in shares} == set(opinions.LABELS)
    assert sum(float(share) for _, share in shares) == pytest.approx(1, abs=2e-3)
    assert [part.split()[0] for part in words.split("  ")] == ["The", "soup", "was", "not", "bad!", "</s>"]
    assert sum(float(part.split()[1]) for part in words.split("  ")) == pytest.approx(1, abs=0.05)


def test_tfidf_stands_beside_the_models_weights(folder: Path) -> None:
    _, output, _ = run("the soup was not bad", "--compare", "--model", folder / "attention")
    rows = {line.split()[0]: line for line in output.splitlines()}
    for name in ("weights", "TF-IDF"):
        numbers = [float(part) for part in rows[name].split() if part.replace(".", "").isdigit()]
        assert sum(numbers) == pytest.approx(1, abs=0.05)


def test_a_file_and_a_pipe_are_answered_line_by_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("i liked the soup\nthe film was dull\n", encoding="utf-8")
    _, by_file, _ = run("--file", tmp_path / "in.txt", "--model", folder / "max")
    _, by_pipe, _ = run("--model", folder / "max", stdin=(tmp_path / "in.txt").read_bytes())
    assert by_file == by_pipe
    lines = [line.split("\t") for line in by_file.splitlines()]
    assert [line[2] for line in lines] == ["i liked the soup", "the film was dull"]
    assert all(line[0] in opinions.LABELS and 0.3 < float(line[1]) <= 1 for line in lines)


def test_a_column_of_a_table_is_classified(folder: Path, tmp_path: Path) -> None:
    rows = 'text,label\n"i liked it, really",good\n"the film\nwas dull",bad\n,bad\n'
    (tmp_path / "in.csv").write_text(rows, encoding="utf-8")
    for name in ("in.csv", "in.tsv", "in.csv.gz"):
        with pytest.raises(ValueError, match=rf"{name} is a table by its name; --column says where the texts are"):
            run("--file", tmp_path / name, "--model", folder / "max")
    code, output, errors = run("--file", tmp_path / "in.csv", "--column", "text", "--model", folder / "max")
    assert [line.split("\t")[2] for line in output.splitlines()] == ["i liked it, really", "the film was dull", ""]
    assert code == 1
    assert errors == "regard: row 3 is empty: there is nothing to name\n"
    (tmp_path / "in.tsv").write_text("good\ti liked it\n", encoding="utf-8")
    _, output, _ = run("--file", tmp_path / "in.tsv", "--column", "1", "--model", folder / "max")
    assert output.splitlines()[0].endswith("\ti liked it")
    with pytest.raises(ValueError, match="the header has no column 'txt'; it has text, label"):
        run("--file", tmp_path / "in.csv", "--column", "txt", "--model", folder / "max")
    with pytest.raises(ValueError, match="--column describes a --file, and none is given"):
        run("i liked it", "--column", "text", "--model", folder / "max")


def test_lines_that_cannot_be_named_do_not_stop_the_others(folder: Path) -> None:
    code, output, errors = run("--model", folder / "max", stdin=b"i liked it\n\n\xff\xfe\nthe film was dull\n")
    assert code == 1
    assert [bool(line.split("\t")[0]) for line in output.splitlines()] == [True, False, False, True]
    assert "line 2 is empty: there is nothing to name" in errors
    assert "line 3 is no text: byte 1 of the line, 0xff, is not UTF-8" in errors


def test_lines_without_a_known_word_are_counted(folder: Path) -> None:
    code, output, errors = run("--model", folder / "words", stdin=b"i liked it\nzebra quagga\nokapi\n")
    assert (code, len(output.splitlines())) == (0, 3)
    assert "the model knows no word of 2 of 3 lines, so its answers to these say nothing about them" in errors
    assert run("--model", folder / "words", stdin=b"i liked it\nthe zebra was dull\n")[2] == ""


def test_a_file_with_nothing_in_it_is_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_bytes(b"")
    for given, name in ((("--file", tmp_path / "none.txt"), tmp_path / "none.txt"), ((), "standard input")):
        code, output, errors = run("--model", folder / "max", *given, stdin=b"")
        assert (code, output) == (0, "")
        assert errors == f"regard: {name} is empty: there is nothing to classify\n"


def test_of_several_each_is_named(folder: Path) -> None:
    tones = ["tone:rising:4", "tone:falling:2"]
    _, output, _ = run(*tones, "--model", folder / "sound")
    assert output.splitlines()[::4] == tones
    assert "tone" not in run(tones[0], "--model", folder / "sound")[1]
    texts = ["i liked it", "the film was dull"]
    assert run(*texts, "--model", folder / "last")[1].splitlines()[::2] == texts
    assert len(run(*texts, "--model", folder / "attention")[1].splitlines()) == 4  # where they are shaded already


def test_bad_texts_are_reported_clearly(folder: Path) -> None:
    with pytest.raises(ValueError, match="text 1 is empty: there is nothing to name"):
        run("  ", "--model", folder / "attention")
    with pytest.raises(ValueError, match=r"text 1 has [\d,]+ tokens; at most 2,048 fit: split it"):
        run("good " * 200_000, "--model", folder / "attention")
    code, _, errors = run("ξψ ωω", "--model", folder / "attention")
    assert code == 0
    assert "the model knows no word of this" in errors


def test_words_the_model_does_not_know_are_marked(folder: Path) -> None:
    def words(text: str, model: str) -> tuple[list[str], str]:
        _, output, errors = run(text, "--model", folder / model)
        return [part.split()[0] for part in output.splitlines()[1].strip().split("  ")], errors

    words_shown, errors = words("the zebra was dull.", "words")
    assert words_shown == ["the", "⟨zebra⟩", "was", "⟨dull.⟩", "</s>"]
    assert "does not know what stands in ⟨⟩" in errors
    assert "it knows 'dull', so put a space between it and the punctuation" in errors
    words_shown, errors = words("the zebra was dull", "words")
    assert words_shown == ["the", "⟨zebra⟩", "was", "dull", "</s>"]
    assert "punctuation" not in errors
    assert words("the film was dull", "words") == (["the", "film", "was", "dull", "</s>"], "")
    words_shown, errors = words("the film was dull日", "attention")  # of a word in pieces, one
    assert words_shown == ["the", "film", "was", "⟨dull日⟩", "</s>"]


def test_a_pooling_without_weights_says_so(folder: Path) -> None:
    _, output, errors = run("i liked the soup", "--model", folder / "last")
    assert len(output.splitlines()) == 1
    assert "gives words no weights" in errors


def test_sounds_are_drawn_with_where_the_model_listened(folder: Path, tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")
    quiet = np.concatenate([np.zeros(8000), np.sin(np.arange(8000))])
    soundfile.write(tmp_path / "a.wav", np.stack([quiet, quiet], 1), 16000)
    _, output, _ = run(tmp_path / "a.wav", "--model", folder / "sound", "--save-plot", tmp_path / "a.svg")
    sure, sound, weights = output.splitlines()
    assert sure.endswith("and 5 more")
    assert sound.startswith("sound")
    assert sound.split(maxsplit=1)[1].count("█") > 20  # the second half is loud
    assert len(weights.removeprefix("weights  ")) == 60
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("seconds") >= 1
    code, _, errors = run(tmp_path / "a.wav", tmp_path / "b.wav", "--model", folder / "sound")
    assert code == 1
    assert f"there is no file {tmp_path / 'b.wav'}" in errors


@pytest.mark.parametrize("model", ["sound", "spell"])
def test_silence_is_reported(folder: Path, tmp_path: Path, model: str) -> None:
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed (regard[sound])")
    wave = 0.1 * np.sin(np.arange(8000))
    files = {"silent": 0.0 * wave, "level": 0.3 + 0.001 * wave, "brief": wave[:20], "loud": wave, "low": 0.05 * wave}
    for name, samples in files.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 8000)
    why = {
        "silent": "nothing is heard in {}: it is silent",
        "level": "nothing is heard in {}: it is constant",
        "brief": "{} lasts 2.5 milliseconds, too short to judge",
    }
    for name in files:
        code, output, errors = run(tmp_path / f"{name}.wav", "--model", folder / model)
        assert code == 0
        assert output
        if name in why:
            assert why[name].format(tmp_path / f"{name}.wav") in errors
        else:
            assert "means nothing" not in errors
    names = [tmp_path / f"{name}.wav" for name in ("loud", "none", "silent")]
    code, _, errors = run(*names, "--model", folder / model)
    assert code == 1
    assert errors.count("nothing is heard") == 1


def test_a_speller_writes_and_its_alignment_is_drawn(folder: Path, tmp_path: Path) -> None:
    code, output, _ = run("tone:rising:4", "--model", folder / "spell", "--save-plot", tmp_path / "a.png")
    assert code == 0
    assert output.count("\n") == 1
    assert (tmp_path / "a.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="name the sound files to spell"):
        run("--model", folder / "spell")


def test_plots_of_words(folder: Path, tmp_path: Path) -> None:
    run("i liked the soup", "--model", folder / "attention", "--save-plot", tmp_path / "a.svg")
    assert "TF-IDF" in (tmp_path / "a.svg").read_text(encoding="utf-8") or (tmp_path / "a.svg").stat().st_size > 5000
    with pytest.raises(ValueError, match="--save-plot draws one text or sound, and 2 are given"):
        run("a", "b", "--model", folder / "attention", "--save-plot", tmp_path / "a.svg")


def test_options_that_mean_nothing_are_refused_and_not_dropped(folder: Path, tmp_path: Path) -> None:
    for name in ("sound", "spell"):
        with pytest.raises(ValueError, match=f"--compare is for texts, .*{name} reads sounds"):
            run("--compare", "tone:rising:4", "--model", folder / name)
    with pytest.raises(ValueError, match="--compare shows the words of texts that are arguments"):
        run("--compare", "--model", folder / "max", stdin=b"i liked it\n")
    with pytest.raises(ValueError, match="no attention, so there is nothing to show"):
        run("tone:rising:4", "--model", folder / "spell-blind", "--save-plot", tmp_path / "a.png")
    with pytest.raises(ValueError, match="gives moments no weights, so there is nothing to draw"):
        run("tone:rising:4", "--model", folder / "sound-last", "--save-plot", tmp_path / "a.png")
    with pytest.raises(ValueError, match="give arguments or a --file, not both"):
        run("tone:rising:4", "--model", folder / "spell", "--file", tmp_path / "in.txt")
    assert not list(tmp_path.iterdir())


def test_a_mistyped_sound_is_no_text(folder: Path, tmp_path: Path) -> None:
    for name in ("sevn.wav", "sevn.FLAC", "sevn.mp3#0:800"):
        with pytest.raises(ValueError, match=f"there is no file {name}; if it is a text, give a --model"):
            run(name)
    (tmp_path / "a.wav").write_bytes(b"")
    for sound in (tmp_path / "a.wav", "tone:rising:4"):
        with pytest.raises(ValueError, match=f"{sound} is a sound, and 'i liked it' is not: give sounds or texts"):
            run("i liked it", sound)
    assert run("i liked sevn.wav", "--model", folder / "attention")[0] == 0  # who names the model means a text


def test_names_of_files_are_no_texts_and_texts_no_names(folder: Path, tmp_path: Path) -> None:
    for name in ("a.wav", "b.JPG", "c.txt"):
        (tmp_path / name).write_bytes(b"")
    sound, picture, text = (tmp_path / name for name in ("a.wav", "b.JPG", "c.txt"))
    for one, kind, able in (
        (sound, "sound", "classify"),
        (f"{sound}#0:800", "sound", "classify"),
        (picture, "picture", "caption"),
    ):
        with pytest.raises(ValueError, match=f"{one} is a {kind}, and .*attention reads texts; .* regard {able} {one}"):
            run("i liked it", one, "--model", folder / "attention")
    for model in ((), ("--model", folder / "attention")):
        with pytest.raises(ValueError, match=f"{text} is a file, and would be read as a text; --file {text} reads"):
            run(text, *model)
    for one in ("seven is a number", picture, text):
        with pytest.raises(ValueError, match=f"sound reads sounds, and '{one}' is none; for a text, give a --model"):
            run(one, "--model", folder / "sound")


def test_a_translator_is_no_classifier() -> None:
    with pytest.raises(ValueError, match="is a model for `regard translate`; give one that can classify or spell"):
        run("a text", "--model", "tatoeba-transformer-en-fr")


@pytest.mark.skipif(TEXT_MODEL not in shipped(), reason=f"{TEXT_MODEL} does not ship yet")
def test_the_classifier_of_texts_that_ships_reads_them_in_order() -> None:
    """Each pair has the same words, and opposite labels."""
    for good, bad in [
        ("The soup was bad, but the view was lovely.", "The view was lovely, but the soup was bad."),
        ("Although the bed was awful, I liked the hotel.", "Although I liked the hotel, the bed was awful."),
    ]:
        assert run(good)[1].startswith("positive")
        assert run(bad)[1].startswith("negative")


@pytest.mark.skipif(SOUND_MODEL not in shipped(), reason=f"{SOUND_MODEL} does not ship yet")
def test_the_classifier_of_sounds_that_ships_answers() -> None:
    code, output, _ = run("tone:rising:4")
    assert code == 0
    assert output.split()[0] in photos_and_spoken_digits.WORDS
