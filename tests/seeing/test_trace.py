"""Traces: a changed tensor is refused by name, a number in a file is no proof, and a changing file changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors", reason="needs safetensors")

from safetensors.torch import load_file, save_file

import regard
from tests.support.viewer_client import seen_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    seen_of().save(tmp_path / "trace")
    return tmp_path / "trace"


def edit(trace: Path, change: Callable[[dict[str, Any]], object]) -> None:
    about = json.loads((trace / "trace.json").read_text(encoding="utf-8"))
    change(about)
    (trace / "trace.json").write_text(json.dumps(about), encoding="utf-8")


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {name: x.clone() for name, x in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "rows"])
def test_a_changed_tensor_is_refused_by_name(trace: Path, name: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[:1] += 1

    edit_tensors(trace / "0001.safetensors", change)
    seen = regard.load_trace(trace)
    assert seen[0].fidelity().faithful
    with pytest.raises(ValueError, match=rf"0001\.safetensors is damaged: its tensor '{name}' is not the one"):
        seen[1].weights  # noqa: B018
    assert not seen[1].fidelity().faithful


def test_every_flipped_bit_of_a_file_is_found(trace: Path) -> None:
    content = (trace / "0000.safetensors").read_bytes()
    for at in range(0, len(content), len(content) // 97):
        damaged = bytearray(content)
        damaged[at] ^= 4
        (trace / "0000.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"0000\.safetensors"):
            regard.load_trace(trace)[0].weights  # noqa: B018


def test_a_tensor_that_was_added_or_removed_is_named(trace: Path) -> None:
    edit_tensors(trace / "0000.safetensors", lambda tensors: tensors.update(sinks=torch.zeros(3)))
    with pytest.raises(ValueError, match="its tensor 'sinks' is not the one"):
        regard.load_trace(trace)[0].weights  # noqa: B018
    edit_tensors(trace / "0001.safetensors", lambda tensors: tensors.pop("out"))
    with pytest.raises(ValueError, match="it has no tensor 'out', which was written"):
        regard.load_trace(trace)[1].weights  # noqa: B018


def test_a_trace_of_an_earlier_version_has_no_digests(trace: Path) -> None:
    edit(trace, lambda about: [call.pop("sha256") for call in about["calls"]])
    assert regard.load_trace(trace).faithful


def test_a_number_in_the_file_is_no_proof(trace: Path) -> None:
    """Somebody who forges weights can forge digests and the error as well; only W·v computed here proves anything."""

    def forge(about: dict[str, Any]) -> None:
        about["calls"][0] |= {"fidelity": 0.0, "budget": 1e9}
        for call in about["calls"]:
            del call["sha256"]

    edit_tensors(trace / "0000.safetensors", lambda tensors: tensors["q"].zero_())
    edit_tensors(trace / "0001.safetensors", lambda tensors: tensors["q"].zero_())
    edit(trace, forge)
    seen = regard.load_trace(trace)
    stated = seen[0].fidelity()
    assert (stated.faithful, stated.recorded) == (None, True)
    assert "(recorded)" in seen.rows()[0][-1]
    assert seen[1].fidelity().faithful is False
    assert seen.faithful is False
    edit(trace, lambda about: about["calls"][1].update({"fidelity": 0.0, "budget": 1e9}))
    assert regard.load_trace(trace).faithful is None


def test_a_forged_row_state_is_found(tmp_path: Path) -> None:
    """Weights that do not follow from q and k, made with a row state; the output is forged to match them."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    model = nn.Identity()
    model.forward = lambda: regard.attend(q, k, v, backend="fused")  # type: ignore[method-assign]
    with regard.watch(model) as seen:
        model()
    seen.save(tmp_path / "trace")
    edit(tmp_path / "trace", lambda about: about["calls"][0].pop("sha256"))
    assert regard.load_trace(tmp_path / "trace").faithful

    def forge(tensors: dict[str, torch.Tensor]) -> None:
        weights = seen[0].weights.tile(slice(None), slice(None))
        state = torch.logsumexp(q @ k.mT / 8**0.5, -1) if "state" not in tensors else tensors["state"].view(1, 2, 6)
        tensors["state"] = (state + 1).contiguous()
        tensors["out"] = (weights * torch.exp(torch.tensor(-1.0))) @ v

    edit_tensors(tmp_path / "trace" / "0000.safetensors", forge)
    assert regard.load_trace(tmp_path / "trace").faithful is False


def test_an_error_that_was_recorded_is_told_from_one_that_was_measured(tmp_path: Path) -> None:
    model = nn.MultiheadAttention(16, 4, batch_first=True)
    with regard.watch(model) as seen:
        model(*(torch.randn(2, 6, 16),) * 3)
    assert seen.faithful
    seen.save(tmp_path / "trace")
    back = regard.load_trace(tmp_path / "trace")
    assert back.faithful is None
    assert back.unproven == back.calls
    assert "(recorded)" in back.rows()[0][-1]


CHANGED = """
import os, sys, regard
seen = regard.load_trace(sys.argv[1])
before = [call.weights.tile(slice(None), slice(None)) for call in seen]
for name in os.listdir(sys.argv[1]):
    if name.endswith(".safetensors"):
        {change}
for call, weights in zip(seen, before):
    call.forget()
    assert (call.weights.tile(slice(None), slice(None)) == weights).all()
print("the same")
"""


@pytest.mark.parametrize(
    "change",
    [
        "os.truncate(os.path.join(sys.argv[1], name), 0)",
        "size = os.path.getsize(p := os.path.join(sys.argv[1], name)); open(p, 'r+b').write(bytes(size))",
    ],
    ids=["cut short", "overwritten"],
)
def test_a_file_that_changes_underneath_changes_nothing(tmp_path: Path, change: str) -> None:
    """Mapped, a file that is cut short ends the process (SIGBUS), and one that is overwritten changes the numbers."""
    seen_of(length=600).save(tmp_path / "trace")
    script = CHANGED.replace("{change}", change)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script, str(tmp_path / "trace")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "the same", (done.returncode, done.stderr)


def test_tokens_may_be_missing(trace: Path) -> None:
    edit(trace, lambda about: about.pop("tokens"))
    assert regard.load_trace(trace).tokens is None
