"""Traces are what was written; layers are counted among alike modules; what was seen keeps no model alive."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard import load_trace, watch
from regard.files import DamagedFileError, write_list
from regard.seeing.analysis import ablate
from regard.seeing.trace import ModuleDepths, Seen
from regard.seeing.watch import named_parts
from tests.support.attention_model import random_text, watched
from tests.support.viewer_client import seen_of

pytest.importorskip("safetensors", reason="needs safetensors")

from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    seen_of().save(tmp_path / "trace")
    return tmp_path / "trace"


def edit(trace: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a trace as a forger would, who writes the digest that fits."""
    about = json.loads((trace / "trace.json").read_text(encoding="utf-8"))
    del about["own_sha256"]
    change(about)
    write_list(trace / "trace.json", about)


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


def test_every_flipped_bit_of_the_description_is_found_or_means_the_same(trace: Path) -> None:
    file = trace / "trace.json"
    content = file.read_bytes()
    meant, refused = json.loads(content), 0
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 7
        file.write_bytes(damaged)
        try:
            regard.load_trace(trace)
        except DamagedFileError:
            refused += 1
        else:
            assert json.loads(bytes(damaged)) == meant
    assert refused > len(content) // 2


def test_a_tensor_that_was_added_or_removed_is_named(trace: Path) -> None:
    edit_tensors(trace / "0000.safetensors", lambda tensors: tensors.update(sinks=torch.zeros(3)))
    with pytest.raises(ValueError, match="its tensor 'sinks' is not the one"):
        regard.load_trace(trace)[0].weights  # noqa: B018
    edit_tensors(trace / "0001.safetensors", lambda tensors: tensors.pop("out"))
    with pytest.raises(ValueError, match="it has no tensor 'out', which was written"):
        regard.load_trace(trace)[1].weights  # noqa: B018


def test_a_trace_of_an_earlier_version_has_no_digests(trace: Path) -> None:
    about = json.loads((trace / "trace.json").read_text(encoding="utf-8"))
    del about["own_sha256"]
    about["format"] = 1
    for call in about["calls"]:
        del call["sha256"]
    (trace / "trace.json").write_text(json.dumps(about), encoding="utf-8")
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


class SelfAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    def __init__(self, mixer: nn.Module | None = None) -> None:
        super().__init__()
        self.mixer = mixer or SelfAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(x)


class Mamba(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Encoder(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers or (Layer(), Layer(), Layer()))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))


def layers_of(model: nn.Module, **options: object) -> list[int | None]:
    with torch.no_grad(), watch(model, **options) as seen:  # type: ignore[arg-type]
        model(X)
    return [call.layer for call in seen]


def test_the_number_of_a_wrapper_is_not_a_layer() -> None:
    assert layers_of(Encoder()) == [0, 1, 2]
    assert layers_of(nn.Sequential(Encoder())) == [0, 1, 2]
    assert layers_of(nn.Sequential(nn.Linear(8, 8), Encoder()), layers=1) == [1]


def test_blocks_of_stages_are_counted_through() -> None:
    stages = Encoder(Encoder(Layer()), Encoder(Layer(), Layer()))
    assert layers_of(stages) == [0, 1, 2]
    assert layers_of(stages, layers=[2]) == [2]


def test_layers_without_attention_are_left_out() -> None:
    assert layers_of(Encoder(Layer(Mamba()), Layer(), Layer(Mamba()), Layer())) == [0, 1]
    assert layers_of(nn.Sequential(nn.Linear(8, 8), SelfAttention(), nn.Linear(8, 8), SelfAttention())) == [0, 1]


def test_a_module_that_is_not_repeated_has_no_layer() -> None:
    assert layers_of(Layer()) == [None]
    assert ModuleDepths(named_parts(Layer())).of("elsewhere") is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_ablation_follows_the_layers_of_a_wrapped_model(wrapped: bool, tmp_path: Path) -> None:
    model: nn.Module = nn.Sequential(Encoder()) if wrapped else Encoder()
    with torch.no_grad(), ablate(model, heads={1: [0]}), watch(model) as seen:
        model(X)
    assert [call.ablated for call in seen] == ["", "heads 0", ""]
    assert "without heads 0" in repr(seen)
    assert seen.faithful
    seen.save(tmp_path / "trace")
    back = load_trace(tmp_path / "trace")
    assert [(call.layer, call.ablated) for call in back] == [(0, ""), (1, "heads 0"), (2, "")]


def test_ablated_tokens_are_in_the_trace() -> None:
    model = Encoder()
    with torch.no_grad(), ablate(model, tokens=[2]), watch(model) as seen:
        model(X)
    assert [call.ablated for call in seen] == ["tokens 2"] * 3


def test_parts_are_the_named_modules_each_once() -> None:
    model = Encoder(Layer(), Encoder())
    model.again = model.layers[0]
    model.nothing = None  # type: ignore[assignment]
    assert named_parts(model) == list(model.named_modules())


def test_what_was_seen_does_not_keep_the_model_alive() -> None:
    model = nn.Sequential(Encoder())
    with torch.no_grad(), watch(model) as seen:
        model(X)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert [call.layer for call in seen] == [0, 1, 2]
    assert [call.all_heads for call in seen] == [2, 2, 2]
    assert seen.faithful


def test_calls_and_heads_by_number_slice_and_pair() -> None:
    seen = watched(random_text(9).ids, layers=3)
    assert seen[1:] == [seen[1], seen[2]]
    assert torch.equal(seen[2, 1].dense(), seen[2].weights[0, 1].dense())
    for index, message in (
        (40, "there is no call 40; there are 3 calls, counted from 0"),
        ((1, 7), "layer.1 has 2 heads, counted from 0; there is no 7"),
    ):
        with pytest.raises(IndexError, match=message):
            _ = seen[index]
    with pytest.raises(IndexError, match="there is no call 0; no attention was called"):
        _ = Seen()[0]


def test_the_analyses_are_found_without_a_search() -> None:
    assert {"effects", "intervene", "circuits", "Patterns", "load_text_model", "Site"} <= set(dir(regard))
    assert "annotations" not in dir(regard)
    assert regard.effects is regard.seeing.analysis.effects
    assert regard.ablate is ablate
