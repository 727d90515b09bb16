"""Runs over a corpus: divided, killed, continued and merged, with the same sums."""

from __future__ import annotations

import itertools
import math
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from regard.seeing import corpus
from regard.seeing.analysis import Patterns
from regard.seeing.corpus import (
    Process,
    Sums,
    benjamini_hochberg,
    bootstrap_interval,
    run_corpus,
    sign_flip_p,
    weights_digest,
)
from regard.seeing.effects import Effects, add_effects, mean_effects
from regard.seeing.interventions import Site
from tests.support.attention_model import AttentionModel, random_text, watched
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = 12
NAME = ("x",)


def _add(sums: Sums, number: int) -> None:
    sums.add(NAME, torch.randn(5, generator=torch.Generator().manual_seed(number)) * 10**number)


class Killed(BaseException):
    pass


def _whole() -> torch.Tensor:
    sums = run_corpus(TEXTS, _add, None, {}, process=Process())
    assert sums is not None
    return sums.sum(NAME)


@pytest.mark.parametrize("seconds", [-1.0, 1e9], ids=["saved", "not saved"])
def test_a_killed_run_continues_where_it_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(corpus, "SAVE_SECONDS", seconds)
    folder, read = tmp_path / "sums", list[int]()

    def add(sums: Sums, number: int) -> None:
        if len(read) == 5:
            read.append(-1)
            raise Killed
        read.append(number)
        _add(sums, number)

    with pytest.raises(Killed):
        run_corpus(TEXTS, add, folder, {}, process=Process())
    sums = run_corpus(TEXTS, add, folder, {}, process=Process())
    assert sums is not None
    first = 5 if seconds < 0 else 0  # what was not saved is read again
    assert read == [*range(5), -1, *range(first, TEXTS)]
    torch.testing.assert_close(sums.sum(NAME), _whole(), rtol=1e-14, atol=0)
    again = run_corpus(TEXTS, add, folder, {}, process=Process())  # nothing is left to do
    assert again is not None
    assert torch.equal(again.sum(NAME), sums.sum(NAME))
    assert read[-1] == TEXTS - 1


def test_ctrl_c_saves_the_texts_that_were_read_and_none_in_part(tmp_path: Path) -> None:
    folder, read, presses = tmp_path / "sums", list[int](), [KeyboardInterrupt]

    def add(sums: Sums, number: int) -> None:
        _add(sums, number)
        if number == 5 and presses:
            raise presses.pop()  # half of this text is added
        read.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_corpus(TEXTS, add, folder, {}, process=Process())
    ((_, finished),) = corpus._parts(folder).values()
    assert finished == [*range(5)]
    sums = run_corpus(TEXTS, add, folder, {}, process=Process())
    assert sums is not None
    assert read == [*range(TEXTS)]
    torch.testing.assert_close(sums.sum(NAME), _whole(), rtol=1e-14, atol=0)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked on Windows")
def test_a_second_run_on_one_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.seeing.test_corpus import _add\n"
        "from regard.seeing.corpus import Process, run_corpus\n"
        "def add(sums, number):\n"
        "    print('began', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    _add(sums, number)\n"
        "run_corpus(1, add, Path(sys.argv[1]), {}, process=Process())\n"
    )
    folder = tmp_path / "sums"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT, **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"began\n"
        with pytest.raises(ValueError, match="another run over a corpus uses"):
            run_corpus(TEXTS, _add, folder, {}, process=Process())
        first.communicate(b"\n")
    assert first.returncode == 0
    assert run_corpus(1, _add, folder, {}, process=Process()) is not None


def test_standard_errors_over_texts_however_they_are_divided() -> None:
    terms = torch.randn(7, 4, dtype=torch.float64)
    whole, parts = Sums(), [Sums(), Sums()]
    for number, term in enumerate(terms):
        whole.add(NAME, term)
        parts[number % 2].add(NAME, term)
    parts[0].merge(Sums.from_state(parts[1].state()))
    expected = terms.std(0) / 7**0.5
    torch.testing.assert_close(whole.standard_error(NAME), expected)
    torch.testing.assert_close(parts[0].standard_error(NAME), expected)
    earlier = {name: x for name, x in whole.state().items() if not name.startswith("squares")}  # of a former version
    assert torch.equal(Sums.from_state(earlier).sum(NAME), whole.sum(NAME))
    assert bool(Sums.from_state(earlier).standard_error(NAME).isnan().all())


def test_p_values_and_intervals_against_their_definitions() -> None:
    values = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    p = sign_flip_p(values)
    for row, mine in zip(values.tolist(), p.tolist(), strict=True):
        flips = [
            abs(math.fsum(x * sign for x, sign in zip(row, signs, strict=True)))
            for signs in itertools.product((1, -1), repeat=9)
        ]
        assert mine == sum(flip >= flips[0] * (1 - 1e-9) for flip in flips) / 2**9
    assert sign_flip_p(torch.ones(1, 6, dtype=torch.float64)).item() == 2 / 2**6  # the least that six prompts can say
    assert float(sign_flip_p(torch.ones(1, 40, dtype=torch.float64))) == 2**-12
    q = benjamini_hochberg(torch.tensor([0.01, 0.04, torch.nan, 0.03, 0.5]))
    assert q.tolist() == pytest.approx([0.04, 0.16 / 3, math.nan, 0.16 / 3, 0.5], nan_ok=True)
    low, high = bootstrap_interval(values)
    mean, error = values.mean(1), values.std(1) / 3
    assert torch.allclose((low + high) / 2, mean, atol=0.1)  # near the normal interval, a little narrower
    assert bool(((high - low) / (2 * 1.96 * error) - 0.93).abs().max() < 0.08)
    assert bool(bootstrap_interval(values[:, :1])[0].isnan().all())


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    """Two processes over gloo, each with half of the texts."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from tests.seeing.test_corpus import NAME, TEXTS, _add\n"
        "from regard.seeing.corpus import run_corpus\n"
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
    torch.testing.assert_close(torch.load(tmp_path / "result.pt", weights_only=True), _whole(), rtol=1e-14, atol=0)
    parts = corpus._parts(tmp_path / "sums")
    assert sorted(len(numbers) for _, numbers in parts.values()) == [TEXTS // 2, TEXTS // 2]


def test_patterns_of_parts_are_those_of_the_whole() -> None:
    """Scores and p values, whose random keys depend on the text's number and not on what was added before."""
    texts = [random_text(20 + number) for number in range(4)]

    def added(numbers: list[int]) -> Sums:
        sums = Sums()
        for number in numbers:
            torch.manual_seed(0)
            Patterns(sums=sums).add(watched(texts[number].ids), texts[number], number=number)
        return sums

    whole, first, second = added([0, 1, 2, 3]), added([1, 3]), added([2, 0])
    second.merge(first)
    expected, parts = Patterns(sums=whole), Patterns(sums=Sums.from_state(second.state()))
    assert parts.texts == expected.texts == 4
    assert parts.names == expected.names
    for part, whole_head in zip(parts.heads(), expected.heads(), strict=True):
        assert part.scores == pytest.approx(whole_head.scores, rel=1e-12)
        assert part.p == whole_head.p


def test_refusals(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    with pytest.raises(ValueError, match="give --state FOLDER"):
        run_corpus(TEXTS, _add, None, {}, process=Process(0, 2))
    run_corpus(TEXTS, _add, folder, {"model": "a"}, process=Process())
    with pytest.raises(ValueError, match="model was 'a' and is 'b'"):
        run_corpus(TEXTS, _add, folder, {"model": "b"}, process=Process())
    with pytest.raises(ValueError, match="holds 12 of 13 texts"):
        corpus._merged(folder, TEXTS + 1)
    part = next(folder.glob("part-*"))
    (folder / "part-9-copy.safetensors").write_bytes(part.read_bytes())
    with pytest.raises(ValueError, match="two runs used it at a time"):
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


def test_a_state_brings_all_back_and_other_shapes_are_refused() -> None:
    sums = Sums()
    for term in torch.randn(9, 4):
        sums.add(NAME, term)
    sums.add(("draw", "a"), torch.ones(2, 3))
    back = Sums.from_state(sums.state())
    assert sorted(back.names) == sorted(sums.names)
    assert torch.equal(back.sum(NAME), sums.sum(NAME))
    assert back.count(NAME) == 9
    with pytest.raises(ValueError, match=r"shape \(5,\), and \(4,\) before"):
        sums.add(NAME, torch.ones(5))


def test_the_mean_over_texts_in_the_order_of_layers_and_heads() -> None:
    sites = [Site(layer, head, None, f"layer.{layer}") for layer in (0, 2, 11) for head in range(2)]
    several = [
        Effects("heads", "zero", sites, torch.rand(1).double(), torch.rand(len(sites), 1).double()) for _ in range(5)
    ]
    sums = Sums()
    for effects in several:
        add_effects(sums, effects)
    mean = mean_effects(Sums.from_state(sums.state()), "zero")
    assert mean.sites == sites
    expected = torch.stack([effects.differences for effects in several]).mean(0)
    torch.testing.assert_close(mean.differences, expected, rtol=0, atol=1e-12)


def test_tokens_have_no_mean() -> None:
    tokens = Effects("tokens", "zero", [Site(token=0)], torch.zeros(1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="no mean over texts"):
        add_effects(Sums(), tokens)


# The thread of gloo that drops the tensor waits for Python's lock until the first function at exit has run.
GLOO = """
import atexit, sys, torch
from torch import distributed
from regard.seeing.corpus import leave_groups_at_exit

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
leave_groups_at_exit()
atexit.register(sum, range(20_000_000))
sys.setswitchinterval(60)
distributed.all_reduce(torch.ones(8), async_op=True)
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_a_thread_of_gloo_drops_its_tensor_before_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", GLOO], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
