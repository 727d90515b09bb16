"""Runs over a corpus: divided, killed, continued and merged, with the same sums to the last bit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard.seeing.analysis import Patterns
from regard.seeing.corpus import corpus_run
from regard.seeing.corpus.corpus_run import Process, run_corpus, weights_digest
from regard.seeing.corpus.exact_sums import ExactSums
from tests.support.attention_model import AttentionModel, random_text, watched
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = 12
NAME = ("x",)


def _add(sums: ExactSums, number: int) -> None:
    sums.add(NAME, torch.randn(5, generator=torch.Generator().manual_seed(number)) * 10**number)


class Killed(BaseException):
    pass


def _killed_after(count: int):
    def progress(numbers: list[int]) -> Iterator[int]:
        yield from numbers[:count]
        raise Killed

    return progress


def _whole() -> torch.Tensor:
    sums = run_corpus(TEXTS, _add, None, {}, process=Process())
    assert sums is not None
    return sums.sum(NAME)


def test_a_killed_run_continues_where_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_run, "SAVE_SECONDS", -1.0)
    folder, read = tmp_path / "sums", list[int]()

    def add(sums: ExactSums, number: int) -> None:
        read.append(number)
        _add(sums, number)

    with pytest.raises(Killed):
        run_corpus(TEXTS, add, folder, {}, process=Process(), progress=_killed_after(5))
    sums = run_corpus(TEXTS, add, folder, {}, process=Process())
    assert sums is not None
    assert read == list(range(TEXTS))
    assert torch.equal(sums.sum(NAME), _whole())
    again = run_corpus(TEXTS, add, folder, {}, process=Process())  # nothing is left to do
    assert again is not None
    assert torch.equal(again.sum(NAME), _whole())
    assert len(read) == TEXTS


def test_what_was_not_saved_is_read_again(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run_corpus(TEXTS, _add, tmp_path / "sums", {}, process=Process(), progress=_killed_after(5))
    sums = run_corpus(TEXTS, _add, tmp_path / "sums", {}, process=Process())
    assert sums is not None
    assert torch.equal(sums.sum(NAME), _whole())


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    """Two processes over gloo, each with half of the texts."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from tests.seeing.corpus.test_corpus_run import NAME, TEXTS, _add\n"
        "from regard.seeing.corpus.corpus_run import run_corpus\n"
        "sums = run_corpus(TEXTS, _add, Path(sys.argv[1]), {})\n"
        "if sums is not None:\n"
        "    torch.save(sums.sum(NAME), sys.argv[2])\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "sums"), str(tmp_path / "result.pt")],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error.decode()
    assert torch.equal(torch.load(tmp_path / "result.pt", weights_only=True), _whole())
    parts = corpus_run._parts(tmp_path / "sums")
    assert sorted(len(numbers) for _, numbers in parts.values()) == [TEXTS // 2, TEXTS // 2]


def test_patterns_of_parts_are_those_of_the_whole() -> None:
    """Scores and p values, whose random keys depend on the text's number and not on what was added before."""
    texts = [random_text(20 + number) for number in range(4)]

    def added(numbers: list[int]) -> ExactSums:
        sums = ExactSums()
        for number in numbers:
            torch.manual_seed(0)
            Patterns(sums=sums).add(watched(texts[number].ids), texts[number], number=number)
        return sums

    whole, first, second = added([0, 1, 2, 3]), added([1, 3]), added([2, 0])
    second.merge(first)
    expected, parts = Patterns(sums=whole), Patterns(sums=ExactSums.from_state(second.state()))
    assert parts.texts == expected.texts == 4
    assert parts.names == expected.names
    assert parts.heads() == expected.heads()


def test_refusals(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    with pytest.raises(ValueError, match="give --state FOLDER"):
        run_corpus(TEXTS, _add, None, {}, process=Process(0, 2))
    run_corpus(TEXTS, _add, folder, {"model": "a"}, process=Process())
    with pytest.raises(ValueError, match="model was 'a' and is 'b'"):
        run_corpus(TEXTS, _add, folder, {"model": "b"}, process=Process())
    with pytest.raises(ValueError, match="holds 12 of 13 texts"):
        corpus_run._merged(folder, TEXTS + 1)
    part = next(folder.glob("part-*"))
    (folder / "part-9-copy.safetensors").write_bytes(part.read_bytes())
    with pytest.raises(ValueError, match="two runs used the folder"):
        run_corpus(TEXTS, _add, folder, {"model": "a"}, process=Process())
    (folder / "part-9-copy.safetensors").write_bytes(part.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"part-9-copy.safetensors is damaged .* delete it"):
        run_corpus(TEXTS, _add, folder, {"model": "a"}, process=Process())
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").touch()
    with pytest.raises(ValueError, match="is not empty"):
        run_corpus(TEXTS, _add, other, {}, process=Process())


def test_another_checkpoint_has_another_digest() -> None:
    model = AttentionModel()
    before = weights_digest(model)
    assert weights_digest(model) == before
    with torch.no_grad():
        model.embedding.weight[13, 5] += 1e-3  # one element of one parameter
    assert weights_digest(model) != before
    assert weights_digest(model.bfloat16()) != before
