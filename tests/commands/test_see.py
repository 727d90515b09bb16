"""`regard see` and `regard patterns`, and what real models show: MiniLM's and SmolLM2's heads."""

from __future__ import annotations

import json
import os
import sys
from stat import S_IMODE
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console

import regard
from regard import watch
from regard.files import write_list
from regard.seeing.call import Call
from regard.seeing.fidelity import MeasuredFidelity
from regard.seeing.text_models import load_text_model
from tests.support.command_line import command_output

if TYPE_CHECKING:
    from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="needs transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", ".", "##s", "is", "tired"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT with a tokenizer, as `save_pretrained` leaves it."""
    place = tmp_path_factory.mktemp("bert")
    (place / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(place)
    return str(place)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def refused(*words: str) -> str:
    with pytest.raises(SystemExit) as left:
        command_output(*words)
    assert isinstance(left.value.code, str)
    assert "\n" not in left.value.code
    return left.value.code


def test_see_shows_layers_patterns_and_links_and_keeps_a_trace(folder: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    out = command_output("see", folder, "the cats sat", "--with", "the cat is tired .", "--save", str(trace),
        "--layer", "1", "--device", "cpu",
    )  # fmt: skip
    assert "encoder.layer.1.attention.self" in out
    assert "other sentence" in out
    assert "strongest links" in out
    back = regard.load_trace(trace)
    assert back.tokens is not None
    assert back.tokens[0][:4] == ["[CLS]", "the", "cat", "##s"]
    assert back.faithful
    assert "exists" in refused("see", folder, "the cat", "--save", str(trace))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
def test_a_trace_is_for_whom_the_umask_says(folder: str, tmp_path: Path) -> None:
    text_model, before = load_text_model(folder), os.umask(0o027)
    try:
        text_model.read(text_model.encode("the cat")).save(tmp_path / "trace")
    finally:
        os.umask(before)
    assert S_IMODE((tmp_path / "trace").stat().st_mode) == 0o750
    assert {S_IMODE(file.stat().st_mode) for file in (tmp_path / "trace").iterdir()} == {0o640}


def test_what_cannot_be_drawn_is_reported_before_anything_is_shown(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("see", folder, "the cat sat", "--device", "cpu", "--save", str(tmp_path / "trace"), "--layer")
    assert "2 layers of 2 heads; there is no 7.0" in refused(*common, "7")
    assert "2 layers of 2 heads; there is no 1.2" in refused(*common, "1", "--head", "2")
    monkeypatch.setattr("regard.seeing.patterns.MAX_TOKENS", 3)
    assert "up to 3 tokens, there are 5; leave --layer out" in refused(*common, "1")
    assert capsys.readouterr().out == ""
    assert not any(tmp_path.iterdir())


def test_a_trace_from_a_stranger_is_checked_and_cannot_command_the_terminal(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model, file = load_text_model(folder), tmp_path / "trace" / "trace.json"
    text_model.read(text_model.encode("the cat")).save(tmp_path / "trace")
    about = json.loads(file.read_text())
    del about["own_sha256"]
    about["calls"][0] |= {"name": "[red]\x1b[31mname", "fidelity": 1e-6, "budget": 1e-4}
    write_list(file, about)
    seen = regard.load_trace(tmp_path / "trace")
    assert seen[0].name == "[red]\\x1b[31mname"
    assert "(recorded)" in seen.rows()[0][-1]
    assert "(recorded)" not in seen.rows()[1][-1]
    Console(width=200).print(seen)
    assert "[red]\\x1b[31mname" in capsys.readouterr().out
    for wrong in (
        {"calls": None},
        {"calls": [3]},
        {"tokens": [1]},
        {"calls": [{**about["calls"][0], "mask": 3}]},
        {"calls": [{**about["calls"][0], "batch": ["2"]}]},
        {"calls": [{x: y for x, y in about["calls"][0].items() if x != "form"}]},
    ):
        write_list(file, about | wrong)
        with pytest.raises(ValueError, match="is not valid"):
            regard.load_trace(tmp_path / "trace")
    write_list(file, about | {"calls": [{**about["calls"][0], "form": {"tanh": True}}]})
    with pytest.raises(ValueError, match=r"does not match trace\.json"):
        _ = regard.load_trace(tmp_path / "trace")[0].kind


def test_masks_with_bounds_are_kept_as_bounds(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: regard.Mask) -> torch.Tensor:
            return regard.attend(x, x, x, mask=mask)

    model, x = Model(), torch.randn(2, 3, 9, 4)
    masks = {
        (9,): regard.causal() & regard.window(3),
        (2, 9): regard.padding(torch.tensor([5, 9])),
        (2, 3, 9): regard.window(2, center=torch.randint(9, (2, 3, 9))),
    }
    for at, (shape, mask) in enumerate(masks.items()):
        with watch(model) as seen:
            model(x, mask)
        seen.save(tmp_path / f"{at}")
        kept = load_file(tmp_path / f"{at}" / "0000.safetensors")
        assert "mask" not in kept
        assert kept["start"].shape == shape
        back = regard.load_trace(tmp_path / f"{at}")
        assert torch.equal(back[0].weights.dense(), seen[0].weights.dense())
        assert back.faithful


def test_patterns_over_a_file_with_a_picture(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    file, picture = tmp_path / "texts.txt", tmp_path / "heads.svg"
    file.write_text("the cat sat on the mat .\n\nthe mat is tired .\n")
    table = tmp_path / "heads.csv"
    save = "--save-plot", str(picture), "--save-table", str(table)
    out = command_output("patterns", folder, str(file), *save, "--device", "cpu")
    header, *rows = table.read_text().splitlines()
    assert header.startswith("layer,head,module,next,previous,self")
    assert len(rows) == 4
    assert rows[1].startswith("0,1,encoder.layer.0.attention.self,")
    assert "heads that score highest" in out
    assert "2 texts" in out
    assert "1 text;" in command_output("patterns", folder, "the cat/mat sat", "--device", "cpu")
    assert picture.read_text().startswith("<?xml")


def test_lines_that_are_no_text_are_reported(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, common = tmp_path / "texts.txt", ("patterns", folder, str(tmp_path / "texts.txt"), "--device", "cpu")
    file.write_bytes(b"the cat sat .\n\xff\nthe mat is tired .\n")
    assert "2 texts" in command_output(*common)
    said = f"regard: {file}:2 is no text: byte 1 of the line, 0xff, is not UTF-8; it is left out\n"
    assert said in capsys.readouterr().err
    file.write_bytes(b"\xff\n")
    assert "no line with words in it" in refused(*common)
    assert f"{file}:1 is no text" in capsys.readouterr().err


def test_mistakes_are_one_line_that_says_what_to_do(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "empty" in refused("see", folder, " ")
    assert "'the cat' first: put a text in quotes; one" in refused("see", folder, "the cat", "the mat")
    for name in ("texts.txt", "my texts.txt.xz", "folder/texts"):
        assert f"there is no file {name}; what looks" in refused("patterns", folder, name)
    assert "2 layers of 2 heads" in refused("see", folder, "the cat", "--layer", "7")
    assert "no config.json" in refused("see", str(tmp_path), "the cat")
    assert ".png" in refused("patterns", folder, "the cat", "--save-plot", "heads.gif")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "hf auth login" in refused("see", "nobody/has-this-model", "the cat")


def test_a_model_that_never_attends_is_distinguished(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    config = transformers.FNetConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, intermediate_size=20, max_position_embeddings=32
    )
    transformers.FNetModel(config).save_pretrained(tmp_path)
    assert "called no attention" in refused("see", str(tmp_path), "the cat")


def test_a_model_with_encoder_and_decoder_reads_both_sides(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    config = transformers.T5Config(
        vocab_size=len(WORDS),
        d_model=16,
        d_kv=8,
        d_ff=20,
        num_layers=1,
        num_heads=2,
        pad_token_id=0,
        decoder_start_token_id=4,
    )
    transformers.T5Model(config).save_pretrained(tmp_path)
    out = command_output("see", str(tmp_path), "the cat sat", "--with", "the mat is tired .", "--layer", "2",
        "--device", "cpu",
    )  # fmt: skip
    assert "cross" in out
    assert "mat" in out
    assert "give what it writes" in refused("see", str(tmp_path), "the cat")
    given: list[torch.Tensor] = []
    text_model = load_text_model(str(tmp_path))
    text_model.model.register_forward_pre_hook(
        lambda _, __, options: given.append(options["decoder_input_ids"]), with_kwargs=True
    )
    target = text_model.encode_target("the mat")
    text_model.read(text_model.encode("the cat"), target)
    assert given[0].tolist() == [[4, *target.ids.tolist()[:-1]]]  # row i writes token i
    text_model.model.config.decoder_start_token_id = text_model.model.config.bos_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        text_model.read(text_model.encode("the cat"), target)


def test_what_the_model_did_not_compute_is_not_drawn(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Call.fidelity

    def spoiled(call: Call) -> MeasuredFidelity:
        return MeasuredFidelity(0.7, 1e-4) if "layer.1" in call.name else real(call)

    monkeypatch.setattr(Call, "fidelity", spoiled)
    drawn = command_output("see", folder, "the cat sat", "--layer", "0", "--device", "cpu")
    hidden = command_output("see", folder, "the cat sat", "--layer", "1", "--device", "cpu")
    for out in (drawn, hidden):
        assert "no pattern or link is shown" in out
        assert "strongest links" not in out
        assert "what each head does" not in out
    assert "is not drawn" in hidden
    assert "sat" not in hidden
    assert "sat" in drawn


def test_a_translator_of_ours_is_seen_as_it_translates(tmp_path: Path) -> None:
    from regard.data import Tokenizer, TokenizerPair
    from regard.models import (
        EncoderDecoder,
        EncoderDecoderConfig,
        RecurrentDecoderConfig,
        RecurrentEncoderConfig,
    )

    both = Tokenizer.train("bpe", 60, ["the bird sees a worm .", "the late worm sees the early bird ."])
    torch.manual_seed(0)
    encoder, decoder = RecurrentEncoderConfig(embedding=16, width=8), RecurrentDecoderConfig(embedding=16, width=16)
    EncoderDecoder(EncoderDecoderConfig(len(both), len(both), encoder, decoder)).save_pretrained(tmp_path)
    TokenizerPair(both, both).save(tmp_path)
    out = command_output("see", str(tmp_path), "the bird sees a worm .", "--layer", "0", "--device", "cpu")
    assert "cross" in out
    assert "strongest links" in out
    assert "what each head does" not in out  # patterns are about self-attention over one text
    assert "--with" in refused("see", str(tmp_path), "the bird", "--with", "a worm")
    assert "regard see" in refused("patterns", str(tmp_path), "the bird")
