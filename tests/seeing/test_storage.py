"""HostCopies: what is kept on the CPU is what the GPU computed with, though the model did not wait for it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import load_trace, watch
from regard.seeing import storage, taps
from regard.seeing.storage import HostCopies

if TYPE_CHECKING:
    from pathlib import Path

    from regard.attention.energy_matrix import EnergyMatrix
    from regard.seeing.call import Call

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Kernel(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@gpu
@needs_gpu
def test_copies_are_those_before_a_later_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST", 3 << 20)  # so that some are waited for
    copies, x = HostCopies(), torch.zeros(1 << 18, device="cuda")
    kept = []
    for step in range(20):
        x.fill_(step)
        kept.append(copies.copy(x))
    x.fill_(-1)
    copies.wait()
    assert [float(x.min()) for x in kept] == [float(x.max()) for x in kept] == list(range(20))


@gpu
@needs_gpu
@pytest.mark.parametrize("inference", [True, False])
def test_watched_with_copies_on_the_cpu(inference: bool) -> None:
    model, x = Kernel(), torch.randn(1, 4, 300, 64, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode(inference), torch.no_grad(), watch(model, keep="cpu") as seen:
        for _ in range(4):
            q, k, v = x * 1, x * 2, x * 3
            model(q, k, v)
            q.zero_()
            k.zero_()
            v.zero_()
    assert all(call.v.device.type == "cpu" and call.v.is_pinned() for call in seen)
    assert seen.faithful, seen


@gpu
@needs_gpu
def test_nothing_waits_for_the_gpu_while_the_model_runs() -> None:
    model, x = Kernel(), torch.randn(1, 4, 300, 64, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad(), watch(model):
        model(x, x, x)  # what is made once, like the rows that are kept of an output
    torch.cuda.synchronize()
    with torch.no_grad(), watch(model) as seen:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                model(x, x + 1, x * 2)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert seen.faithful, seen


pytestmark = pytest.mark.filterwarnings("ignore")


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)


class Layers(nn.Module):
    """Several layers that share a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layer:
            x = x + layer(x, x + 1, x * 2, mask)
        return x


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_layers_that_share_a_mask_are_all_kept(where: str, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(2, 2, 6, 8)
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept") as seen:
        model(x, mask)
        mask[..., 0, 3] = True  # the same object with other contents is another mask
        model(x, mask)
    assert not seen.missed
    assert len(seen) == 6
    assert seen[0].weights.energies.mask.seen is seen[2].weights.energies.mask.seen  # type: ignore[union-attr]
    assert float(seen[0].weights.dense()[0, 0, 0, 3]) == 0 < float(seen[3].weights.dense()[0, 0, 0, 3])
    assert seen.faithful


@pytest.mark.parametrize("where", ["cpu", "file"])
def test_a_limit_holds_for_copies_and_they_go_with_their_call(where: str, tmp_path: Path) -> None:
    model, x, mask = Layers(), torch.randn(2, 2, 6, 8), torch.ones(6, 6).tril()
    one = 3 * x.nbytes + 2 * mask.nbytes
    with torch.no_grad(), watch(model, keep="cpu" if where == "cpu" else tmp_path / "kept", limit=2 * one) as seen:
        model(x, mask)
    assert len(seen) == 2
    assert "1 calls were not kept" in repr(seen)
    del x, mask
    gc.collect()
    assert not seen._storage._copies  # no copy is held for an original that is gone


class Cached(nn.Module):
    """Attention over a cache that is copied to a longer tensor at every step."""

    def forward(self, x: Tensor, stop: int) -> Tensor:
        rows = slice(0 if stop == 40 else stop - 1, stop)
        return F.scaled_dot_product_attention(x[..., rows, :], x[..., :stop, :] * 2, x[..., :stop, :] * 3)


def test_without_values_every_call_is_proved_at_once(tmp_path: Path) -> None:
    model, x = Cached(), torch.randn(1, 2, 44, 8)
    held = {}
    for keep in (None, "qk"):
        with torch.no_grad(), watch(model, keep=keep) as seen:
            for stop in range(40, 45):
                model(x, stop)
        assert len(seen) == 1
        assert seen[0].steps == [40, 1, 1, 1, 1]
        assert seen.faithful
        held[keep] = seen.nbytes, seen[0].weights.dense()
    assert seen[0].v.shape == (1, 2, 44, 0)
    assert torch.equal(held[None][1], held["qk"][1])
    assert held["qk"][0] < held[None][0]
    seen.save(tmp_path / "trace")
    assert load_trace(tmp_path / "trace")[0].fidelity().error == seen[0].fidelity().error


def test_without_values_a_wrong_step_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Cached(), torch.randn(1, 2, 44, 8)
    energies = taps._energies

    def wrong(scale: float | None, is_causal: bool, module: nn.Module | None, call: Call) -> EnergyMatrix:
        """The third step has another output than the model computed."""
        if call.keys == 42:
            call.out = call.out + 1
        return energies(scale, is_causal, module, call)

    monkeypatch.setattr(taps, "_energies", wrong)
    with torch.no_grad(), watch(model, keep="qk") as seen:
        for stop in range(40, 45):
            model(x, stop)
    assert len(seen) == 1
    assert seen.faithful is False


def test_the_memory_held_is_that_of_queries_keys_values_and_some_rows() -> None:
    model, x = Attention(), torch.randn(2, 2, 100, 8)
    with torch.no_grad(), watch(model) as seen:
        model(x * 1, x * 2, x * 3)
    rows, state = 34 * x.nbytes // 100, x.nbytes // 8  # every third of 100 rows: at most 64
    assert 3 * x.nbytes + rows <= seen.nbytes <= 3 * x.nbytes + rows + state
