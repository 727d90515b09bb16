"""Generating: a language model goes on with a text, token by token."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.commands import app
from regard.data import Tokenizer, TokenizerPair
from regard.data.tokenizer_pair import EmptyReader
from regard.decoding import Sample, generate
from regard.models import (
    DecoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LSTMNDecoderConfig,
    NoEncoderConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    TransformerDecoderConfig,
)
from regard.special_tokens import END, UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "The early bird\ncatches the worm,\nand the late one sleeps.\n"
ROOM = 12
DECODERS: dict[str, DecoderConfig] = {
    "Transformer": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=2, positions="learned"),
    "rotary": TransformerDecoderConfig(width=16, heads=2, hidden=32, layers=1, positions="rotary"),
    "LSTM": RecurrentDecoderConfig(attention="none", cell="lstm", embedding=16, width=16),
    "LSTMN": LSTMNDecoderConfig(fusion="none", embedding=16, width=16, layers=2),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("character", 100, [TEXT])


def writer(tokenizer: Tokenizer, name: str = "Transformer", longest: int = ROOM) -> EncoderDecoder:
    torch.manual_seed(4)
    model = EncoderDecoder(
        EncoderDecoderConfig(0, len(tokenizer), NoEncoderConfig(), DECODERS[name], longest=longest)
    ).eval()
    with torch.no_grad():
        model.decoder.output.weight[END] = 0  # some other token is likelier: untrained, none ends by chance
    return model


def likeliest(model: EncoderDecoder, tokenizer: Tokenizer, text: str) -> str:
    """The next character, from the whole text at once."""
    one = torch.ones(1, dtype=torch.int64)
    tokens = torch.tensor([tokenizer.continued(text)])
    with torch.no_grad():
        logits = model.readout(model(one[:, None], one, tokens).features)[0, -1]
    return tokenizer.running([int(logits[END:].argmax()) + END])


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_kept_between_steps_changes_nothing(tokenizer: Tokenizer, name: str) -> None:
    """Also when the window is full, and the text goes on from its second half."""
    model = writer(tokenizer, name)
    written = "The"
    for piece in generate(model, tokenizer, written, tokens=20):
        # The window holds 12: those read and those fed so far. The 10th of these fills it, the 7th of the next.
        seen = len(written) - 3
        back = len(written) if seen < 10 else 6 + (seen - 10) % 7
        assert piece == likeliest(model, tokenizer, written[-back:])
        written += piece
    assert len(written) == 23


def test_tokens_come_as_they_are_drawn(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model, steps = writer(tokenizer, longest=300), 0
    real = type(model.decoder).step

    def counted(*given: object, **also: object) -> object:
        nonlocal steps
        steps += 1
        return real(*given, **also)

    monkeypatch.setattr(type(model.decoder), "step", counted)
    assert len(list(islice(generate(model, tokenizer, "The", tokens=200), 5))) == 5
    assert steps == 5  # what stands before the last character of the prompt is read at once


@pytest.mark.parametrize("name", ["Transformer", "rotary", "LSTMN"])
def test_a_generation_is_seen_as_one_matrix_a_layer(tokenizer: Tokenizer, name: str) -> None:
    model = writer(tokenizer, name)
    with regard.watch(model) as seen:
        list(generate(model, tokenizer, "The ear", tokens=5))
    assert seen.faithful, seen
    assert len(seen.calls) == (1 if name == "rotary" else 2)
    read = 7 + 5 - 1  # all but the last were fed again; the LSTMN's first has nothing to look at
    assert all(call.shape[-1] == read - (name == "LSTMN") for call in seen)


def test_a_seed_decides_what_is_drawn(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)

    def drawn(**how: float) -> str:
        return "".join(generate(model, tokenizer, "The", tokens=40, sample=Sample(**how)))  # type: ignore[arg-type]

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    assert drawn(seed=1, top_k=1) == "".join(generate(model, tokenizer, "The", tokens=40))


def test_an_end_ends_it(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)
    with torch.no_grad():
        model.decoder.norm.weight.zero_()  # the features are the same everywhere …
        model.decoder.norm.bias.fill_(1.0)
        model.decoder.output.weight[END] = 10  # … and there </s> is the likeliest
    assert list(generate(model, tokenizer, "The", tokens=9)) == []


def test_an_unknown_word_is_never_written(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)
    with torch.no_grad():
        model.decoder.norm.weight.zero_()  # the features are the same everywhere …
        model.decoder.norm.bias.fill_(1.0)
        model.decoder.output.weight[UNKNOWN] = 10  # … and there <unk> has all but all of the probability
        model.decoder.output.weight[END] = -10
    for sample in (None, Sample(seed=1), Sample(seed=1, top_k=1), Sample(seed=1, top_p=0.5)):
        written = "".join(generate(model, tokenizer, "The", tokens=9, sample=sample))
        assert len(written) == 9
        assert set(written) <= set(TEXT)


def test_a_text_may_begin_from_nothing(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)
    alone, after = (list(generate(model, tokenizer, prompt, tokens=5)) for prompt in ("", "\n"))
    assert alone == after
    assert len(alone) == 5


def test_prompts_that_cannot_be_read(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)
    with pytest.raises(ValueError, match="does not know 'é', 'ß'; leave it out"):
        next(generate(model, tokenizer, "The éarly ßird"))
    with pytest.raises(ValueError, match="does not know '日本'"):
        next(generate(model, tokenizer, "日本"))
    with pytest.raises(ValueError, match=r"does not know '\\t'; leave it out"):
        next(generate(model, tokenizer, "The\tearly"))
    words = Tokenizer.train("word", 100, [TEXT])
    with pytest.raises(ValueError, match="does not know 'zebra'"):
        next(generate(writer(words), words, "The zebra"))
    with pytest.raises(ValueError, match="no word of this model's vocabulary"):
        next(generate(writer(words), words, ""))
    assert len(list(generate(writer(words), words, "The early", tokens=4))) == 4
    with pytest.raises(ValueError, match="at least 1"):
        next(generate(model, tokenizer, "The", tokens=0))
    with pytest.raises(ValueError, match="the prompt is not UTF-8: character 5 is"):
        next(generate(model, tokenizer, b"The \xff".decode("utf-8", "surrogateescape")))


def test_a_long_prompt_is_read_from_its_end(tokenizer: Tokenizer) -> None:
    model = writer(tokenizer)
    far = TEXT * 2000
    assert list(generate(model, tokenizer, far, tokens=3)) == list(generate(model, tokenizer, far[-6:], tokens=3))


def test_only_language_models_go_on_alone(tokenizer: Tokenizer) -> None:
    size = len(tokenizer)
    reads = RecurrentEncoderConfig(embedding=8, width=8)
    model = EncoderDecoder(EncoderDecoderConfig(size, size, reads, RecurrentDecoderConfig(embedding=8, width=8)))
    with pytest.raises(ValueError, match="reads a source"):
        next(generate(model.eval(), tokenizer, "The"))
    with pytest.raises(ValueError, match="evaluation mode"):
        next(generate(writer(tokenizer).train(), tokenizer, "The"))


class TestCommand:
    @pytest.fixture
    def folder(self, tokenizer: Tokenizer, tmp_path: Path) -> str:
        writer(tokenizer).save_pretrained(tmp_path)
        TokenizerPair(EmptyReader(), tokenizer).save(tmp_path)
        return str(tmp_path)

    def test_writes_the_prompt_and_what_follows(self, tokenizer: Tokenizer, folder: str) -> None:
        how = ["generate", "--model", folder, "--device", "cpu", "--tokens", "30"]
        done = CliRunner().invoke(app, [*how, "--temperature", "0", "The"])
        assert done.exit_code == 0, done.exception
        follows = "".join(generate(writer(tokenizer), tokenizer, "The", tokens=30))
        assert done.stdout == f"The{follows}\n"
        piped = CliRunner().invoke(app, [*how, "--temperature", "0", "-"], input="The")
        assert piped.stdout == done.stdout
        drawn = [CliRunner().invoke(app, [*how, "--seed", seed, "--top-k", "9"]).stdout for seed in "112"]
        assert drawn[0] == drawn[1] != drawn[2]

    def test_says_what_is_wrong(self, folder: str) -> None:
        def error_of(*given: str) -> str:
            done = CliRunner().invoke(app, ["generate", "--model", folder, *given])
            assert done.exit_code != 0
            assert done.stdout == ""
            return str(done.exception)

        assert "does not know 'é'" in error_of("é The")
        assert "does not sample" in error_of("--temperature", "0", "--top-k", "3")
        assert "top_p is a probability, 0 < p ≤ 1; got 0.0" in error_of("--top-p", "0")
        assert "a temperature is a finite number > 0, got inf" in error_of("--temperature", "inf")
        for seed in ("-1", "99999999999999999999"):
            assert "a seed is a whole number from 0 to" in error_of("--seed", seed)

    def test_a_draw_can_be_made_again(self, folder: str) -> None:
        how = ["generate", "--model", folder, "--tokens", "30"]
        done = CliRunner().invoke(app, how)
        (seed,) = re.findall(r"^regard: --seed (\d+) generates this again$", done.stderr, re.MULTILINE)
        again = CliRunner().invoke(app, [*how, "--seed", seed])
        assert again.stdout == done.stdout
        assert again.stderr == ""
        other = CliRunner().invoke(app, how)
        assert other.stderr != done.stderr
        assert CliRunner().invoke(app, [*how, "--temperature", "0"]).stderr == ""

    def test_an_empty_pipe_is_reported(self, folder: str) -> None:
        how = ["generate", "--model", folder, "--tokens", "3", "--temperature", "0"]
        assert "standard input is empty" in CliRunner().invoke(app, [*how, "-"], input="").stderr
        assert CliRunner().invoke(app, [*how, "-"], input="The").stderr == ""

    def test_a_closed_pipe_is_an_empty_one(
        self, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stdin", None)  # as Python leaves it after <&-
        app(["generate", "--model", folder, "--tokens", "3", "--temperature", "0", "-"], standalone_mode=False)
        assert "standard input is empty" in capsys.readouterr().err

    def test_a_model_that_does_not_write_is_refused_with_its_command(self) -> None:
        done = CliRunner().invoke(app, ["generate", "--model", "opinions-lstm"])
        assert "opinions-lstm is a model for `regard classify`; give one that can write" in str(done.exception)
