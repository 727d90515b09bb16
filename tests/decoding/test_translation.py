"""Translating: in order, in any batch, as it streams; every model with its cache and without."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from regard import cli
from regard.data import Tokenizer, TokenizerPair
from regard.data.batch import BEGIN, END
from regard.decoding import Hypothesis, Sample, Translation, load_model_and_tokenizers, search, translate
from regard.models import (
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
    TransformerEncoderConfig,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = [
    "the bird sees a worm .",
    "a worm",
    "the early bird , the one under the old tree , sees and eats a very small and very late worm .",
    "",
    "the late worm sees the early bird .",
    "birds eat worms .",
    "the tree is old , the bird is early and the worm is late .",
]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    both = Tokenizer.train("bpe", 80, TEXTS)
    return TokenizerPair(both, both)


ENCODERS = {
    "rnn": RecurrentEncoderConfig(embedding=16, width=8),
    "transformer": TransformerEncoderConfig(width=16, heads=2, hidden=32, layers=2),
}
DECODERS: dict[str, Any] = {
    "seq2seq": RecurrentDecoderConfig(attention="none", embedding=16, width=16),
    "bahdanau": RecurrentDecoderConfig(embedding=16, width=16, readout="maxout"),
    "conditional": RecurrentDecoderConfig(attention="conditional", embedding=16, width=16),
    "luong-local": RecurrentDecoderConfig(
        attention="luong", energy="general", scope="local-p", cell="lstm", window=2, embedding=16, width=16
    ),
    "transformer": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2),
    "alibi": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2, positions="alibi"),
    "rotary": TransformerDecoderConfig(width=16, heads=2, key_heads=1, hidden=32, layers=2, positions="rotary"),
}


def model(size: int, encoder: str = "rnn", decoder: str = "bahdanau") -> EncoderDecoder:
    torch.manual_seed(1)
    made = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS[encoder], DECODERS[decoder]))
    with torch.no_grad():  # sharper than at birth, so that no two hypotheses are nearly equal
        for parameter in made.parameters():
            parameter.mul_(2.5 if parameter.dim() > 1 else 1)
    return made.eval()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_cached_steps_agree_with_reading_everything_again(decoder: str, beams: int, tokenizers: TokenizerPair) -> None:
    """What search says of a hypothesis, by cached steps reordered and dropped, is what teacher forcing says of it."""
    it = model(len(tokenizers.source), "transformer" if decoder in ("transformer", "alibi") else "rnn", decoder)
    for result in translate(it, tokenizers, TEXTS, beams=beams, best=beams, weights=True, longest=15):
        for h in result.hypotheses if result.source else []:
            source = torch.tensor([result.source_tokens])
            target = torch.tensor([[BEGIN, *h.tokens, END]])
            decoded = it(source, torch.tensor([source.shape[1]]), target[:, :-1], weights=True)
            logprobs = it.readout(decoded.features)[0].log_softmax(-1)
            assert h.logprob == pytest.approx(logprobs.gather(1, target[0, 1:, None]).sum().item(), rel=1e-3)
            if decoder == "seq2seq":
                assert h.weights is None
            else:
                assert h.weights is not None
                torch.testing.assert_close(h.weights, decoded.weights[0], rtol=1e-3, atol=1e-4)


def test_learned_positions_end_a_translation(tokenizers: TokenizerPair) -> None:
    torch.manual_seed(1)
    size = len(tokenizers.source)
    decoder = TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=1, positions="learned")
    it = EncoderDecoder(EncoderDecoderConfig(size, size, ENCODERS["rnn"], decoder, longest=7)).eval()
    with torch.no_grad():
        it.decoder.output.weight[END] = 0  # it does not end by itself
    for longest in (None, 50):
        result = list(translate(it, tokenizers, TEXTS[:3], beams=2, weights=True, longest=longest))
        assert max(len(t.tokens) for t in result) == 7  # with </s>


@pytest.mark.parametrize("decoder", ["bahdanau", "transformer"])
def test_batches_and_windows_change_nothing(decoder: str, tokenizers: TokenizerPair) -> None:
    it = model(len(tokenizers.source), decoder=decoder)
    expected = [next(translate(it, tokenizers, [text], beams=3)) for text in TEXTS]
    for tokens, window in ((10_000, 100), (40, 100), (1, 3), (10_000, 2)):
        result = list(translate(it, tokenizers, TEXTS, tokens=tokens, window=window, beams=3))
        assert [t.source for t in result] == TEXTS
        assert [t.text for t in result] == [t.text for t in expected]
        assert [t.hypotheses[0].score for t in result] == pytest.approx(
            [t.hypotheses[0].score for t in expected], rel=1e-4
        )


def test_it_reads_no_further_than_its_window_and_answers_before_the_end(tokenizers: TokenizerPair) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield TEXTS[read % 2]

    answers = translate(model(len(tokenizers.source)), tokenizers, endless(), window=4, beams=1)
    for number in range(1, 10):
        next(answers)
        assert read <= (number + 3) // 4 * 4


class Recording:
    """An engine that says each source backwards, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []

    def __call__(self, sources: list[list[int]], **how: object) -> list[list[Hypothesis]]:
        self.batches.append(sources)
        return [[Hypothesis(source[-2::-1], 0.0, 0.0)] for source in sources]


def test_batches_hold_like_lengths_and_no_more_than_asked(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    result = list(translate(engine, tokenizers, TEXTS * 5, tokens=60))
    assert [t.hypotheses[0].tokens for t in result] == [t.source_tokens[-2::-1] for t in result]
    assert all(len(batch) == 1 or max(map(len, batch)) * len(batch) <= 60 for batch in engine.batches)
    assert len(engine.batches) < len(TEXTS) * 5 / 2
    # What is next in order is translated first.
    assert TEXTS[0] in {tokenizers.source.decode(source) for source in engine.batches[0]}


def test_an_answer_goes_out_as_soon_as_it_is_the_next(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    answers = translate(engine, tokenizers, TEXTS, tokens=1)
    for number, _ in zip(range(1, 4), answers, strict=False):
        assert len(engine.batches) <= number


def test_empty_lines_stay_empty(tokenizers: TokenizerPair) -> None:
    engine = Recording()
    assert [t.text for t in translate(engine, tokenizers, ["", "   ", ""])] == ["", "", ""]
    assert engine.batches == []
    first, second = translate(engine, tokenizers, ["", ""])
    first.hypotheses[0].tokens.append(5)
    assert second.hypotheses[0].tokens == [], "what one caller changes, another sees"


def test_too_long_a_sentence_is_named(tokenizers: TokenizerPair) -> None:
    with pytest.raises(ValueError, match=r"sentence 2 has [\d,]+ tokens; at most 2,048"):
        list(translate(Recording(), tokenizers, ["a worm", "worm " * 3000]))


def test_a_model_in_training_stays_in_training(tokenizers: TokenizerPair) -> None:
    it = model(len(tokenizers.source)).train()
    list(translate(it, tokenizers, TEXTS[:2], beams=2))
    assert it.training
    with pytest.raises(ValueError, match=r"model\.eval"):
        search(it, it.encode(torch.tensor([[5, END]]), torch.tensor([2])))


@pytest.fixture(scope="module")
def pointer() -> tuple[EncoderDecoder, TokenizerPair]:
    """A model that can copy unknown words. Two of them have one id with probability 1/2."""
    both = Tokenizer.train("word", 40, ["the red car", "sees a bird"], slots=2)
    torch.manual_seed(0)
    decoder = RecurrentDecoderConfig(embedding=16, width=16, copy=True)
    config = EncoderDecoderConfig(len(both), len(both), ENCODERS["rnn"], decoder, slots=2)
    return EncoderDecoder(config).eval(), TokenizerPair(both, both)


def test_an_unknown_word_is_required_only_where_the_source_has_it(
    pointer: tuple[EncoderDecoder, TokenizerPair],
) -> None:
    it, tokenizers = pointer
    names = ["Zorblatt", *(f"name{n}" for n in range(20))]
    ids = [tokenizers.target.encode(name)[0] for name in names]
    same = names[ids.index(ids[0], 1)]  # another unknown word with the id of the first
    how: dict[str, Any] = {"beams": 3, "longest": 6}
    for constraint in ({"prefix": ["Zorblatt"]}, {"include": [["Zorblatt"]]}):
        (copied,) = translate(it, tokenizers, ["the Zorblatt car"], **constraint, **how)
        assert "Zorblatt" in copied.text.split()
        for source in ("the red car", f"the {same} car", f"the {same} Zorblatt car"):
            with pytest.raises(ValueError, match=f"'Zorblatt' cannot be written: .* cannot be copied from '{source}'"):
                list(translate(it, tokenizers, [source], **constraint, **how))
    with pytest.raises(ValueError, match=f"'{same}' is not in the target vocabulary"):
        list(translate(it, tokenizers, ["the Zorblatt car"], include=[[f"Zorblatt {same}"]], **how))
    first, second = translate(it, tokenizers, ["", "the Zorblatt car"], prefix=["Zorblatt"] * 2, **how)
    assert (first.text, second.text.split()[0]) == ("", "Zorblatt")


def test_samples_and_n_best_differ_from_one_another(tokenizers: TokenizerPair) -> None:
    it = model(len(tokenizers.source))
    (drawn,) = translate(it, tokenizers, TEXTS[:1], beams=5, best=5, sample=Sample(seed=1))
    (ranked,) = translate(it, tokenizers, TEXTS[:1], beams=5, best=5)
    assert len({tuple(h.tokens) for h in ranked.hypotheses}) == 5
    assert len({tuple(h.tokens) for h in drawn.hypotheses}) > 1
    assert len(ranked.texts) == 5


@pytest.fixture(scope="module")
def folder(tokenizers: TokenizerPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as `regard train` leaves it."""
    run = tmp_path_factory.mktemp("run")
    model(len(tokenizers.source)).save_pretrained(run / "model")
    tokenizers.save(run / "model")
    (run / "recipe.toml").write_text("[search]\nbeams = 2\nlength_penalty = 0.5\n", encoding="utf-8")
    return run


class TestPretrained:
    def test_a_run_brings_its_search(self, folder: Path) -> None:
        loaded = load_model_and_tokenizers.load(folder)
        assert loaded.search == {"beams": 2, "length_penalty": 0.5}
        assert (loaded.run, loaded.folder) == (folder, folder / "model")
        assert load_model_and_tokenizers.load(folder / "model").search == {}

    def test_what_is_no_model_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="holds no model"):
            load_model_and_tokenizers.find(tmp_path)
        with pytest.raises(ValueError, match="no model is called nonsense"):
            load_model_and_tokenizers.find("nonsense")
        with pytest.raises(ValueError, match="no model is called"):
            load_model_and_tokenizers.find("../recipes")


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str | None = None
) -> str:
    """The command in this process: importing torch once is enough."""
    monkeypatch.setattr(sys, "argv", ["regard", *arguments])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    try:
        cli.main()
    except SystemExit as left:
        if left.code:
            raise
    return capsys.readouterr().out


class TestCommand:
    def test_arguments(
        self,
        folder: Path,
        tokenizers: TokenizerPair,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        out = run(capsys, monkeypatch, "translate", "--model", str(folder), TEXTS[0], TEXTS[1])
        loaded = load_model_and_tokenizers.load(folder)
        expected = translate(loaded.model, tokenizers, TEXTS[:2], beams=2, length_penalty=0.5)
        assert out.splitlines() == [t.text for t in expected]

    def test_a_file_a_pipe_and_arguments_say_the_same(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "in.txt"
        file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
        common = ("translate", "--model", str(folder))
        by_file = run(capsys, monkeypatch, *common, "--file", str(file))
        by_pipe = run(capsys, monkeypatch, *common, stdin=file.read_text(encoding="utf-8"))
        assert by_file == by_pipe == run(capsys, monkeypatch, *common, *TEXTS)
        assert by_file.count("\n") == len(TEXTS)

    def test_the_name_of_a_file_is_no_sentence(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "in.txt"
        file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
        with pytest.raises(SystemExit, match=f"{file} is a file, .* --file {file} reads its lines"):
            run(capsys, monkeypatch, "translate", "--model", str(folder), str(file))

    def test_n_best_has_scores_that_fall(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = run(capsys, monkeypatch, "translate", "--model", str(folder), "--best", "4", TEXTS[0])
        values = [float(line.split("\t")[0]) for line in out.split("\n\n")[0].splitlines()]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)

    def test_n_best_needs_as_many_beams(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(SystemExit, match="--best 4 needs as many beams: --beams is 2"):
            run(capsys, monkeypatch, "translate", "--model", str(folder), "--best", "4", "--beams", "2", TEXTS[0])

    def test_n_best_that_look_the_same_are_one(
        self, tokenizers: TokenizerPair, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from regard.commands.translate import print_translation

        texts = ["a ?", "a\u202f?", "a?", "a\u00a0?", "m²", "m2"]  # m2 is read otherwise
        hypotheses = [Hypothesis([], -1.0 - n, 0.0) for n in range(6)]
        result = Translation("a", [], texts, hypotheses, tokenizers)
        print_translation(result, 6, sampled=False)
        assert capsys.readouterr().out == "-1.0000\ta ?\n-3.0000\ta?\n-5.0000\tm²\n-6.0000\tm2\n\n"
        print_translation(result, 6, sampled=True)
        assert capsys.readouterr().out.count("\t") == 6

    def test_sampling_with_a_seed_repeats(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        common = ("translate", "--model", str(folder), TEXTS[0], "--sample", "1.0", "--seed")
        first, again, other = (run(capsys, monkeypatch, *common, seed) for seed in ("1", "1", "2"))
        assert first == again != other

    def test_show_draws_every_word(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        out = run(capsys, monkeypatch, "translate", "--model", str(folder), "--show", "--longest", "9", TEXTS[0])
        header = out.splitlines()[1].split()
        assert header == [*TEXTS[0].split(), "</s>"]
        for line in out.splitlines()[2:]:
            # Of the last seven columns, each a weight between 0 and 1, rows sum to 1.
            weights = [float(x) for x in re.findall(r"\d\.\d\d|·", line)[-7:]]
            assert sum(weights) == pytest.approx(1, abs=0.04)

    def test_show_passes_over_an_empty_line(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        common = ("translate", "--model", str(folder), "--show", "--longest", "9")
        drawn = run(capsys, monkeypatch, *common, TEXTS[1])
        assert run(capsys, monkeypatch, *common, TEXTS[1], "", TEXTS[1]) == drawn + "\n" + drawn

    @pytest.mark.parametrize("kind", ["png", "svg"])
    def test_save_plot_writes_a_picture(
        self,
        kind: str,
        folder: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pytest.importorskip("matplotlib")
        file = tmp_path / f"looked.{kind}"
        run(capsys, monkeypatch, "translate", "--model", str(folder), "--save-plot", str(file), TEXTS[0])
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
    def test_mistakes_are_one_line(
        self,
        arguments: list[str],
        message: str,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        model_first = [] if "nonsense" in arguments else ["--model", str(folder)]
        with pytest.raises(SystemExit, match=message) as left:
            run(capsys, monkeypatch, "translate", *model_first, *arguments)
        assert "\n" not in str(left.value)

    @pytest.mark.parametrize(("option", "number"), [("--longest", "4097"), ("--beams", "1001"), ("--best", "1001")])
    def test_numbers_that_no_memory_holds_are_refused(
        self,
        option: str,
        number: str,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with pytest.raises(SystemExit) as left:
            run(capsys, monkeypatch, "translate", "--model", str(folder), option, number, "a worm")
        assert left.value.code == 2
        assert f"'{option}': Input should be less than or equal to" in capsys.readouterr().err

    def test_nothing_to_translate_is_reported(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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

    def test_it_asks_where_there_is_a_terminal(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed = iter([TEXTS[0], "", TEXTS[1]])

        def asked(prompt: str) -> str:
            try:
                return next(typed)
            except StopIteration:
                raise EOFError from None  # Ctrl-D

        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", asked)
        out = run(capsys, monkeypatch, "translate", "--model", str(folder))
        assert out == run(capsys, monkeypatch, "translate", "--model", str(folder), TEXTS[0], TEXTS[1])

    def test_a_line_that_cannot_be_translated_is_named_and_the_others_are_translated(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["regard.decoding.source_batches"], "LONGEST", 20)
        file, common = tmp_path / "in.txt", ("translate", "--model", str(folder))
        file.write_bytes(b"a worm\n\xff\n" + b"a worm " * 30 + b"\na worm\n")
        want = run(capsys, monkeypatch, *common, "a worm").strip()
        for where, arguments in ((f"{file}:", ["--file", str(file)]), ("line ", [])):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
            with pytest.raises(SystemExit) as left:
                run(capsys, monkeypatch, *common, *arguments)
            assert left.value.code == 1
            said = capsys.readouterr()
            assert said.out.splitlines() == [want, "", "", want]
            assert f"regard: {where}2 is no text: byte 1 of the line, 0xff, is not UTF-8" in said.err
            assert f"regard: {where}3 has " in said.err
            assert said.err.count("\n") == 2

    def test_a_pipe_is_answered_before_it_closes(self, folder: Path) -> None:
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
