"""HostCopies: what is kept on the CPU is what the GPU computed with, though the model did not wait for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import watch
from regard.seeing.capture.recording import host_copies
from regard.seeing.capture.recording.host_copies import HostCopies

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Kernel(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_nothing_to_wait_for() -> None:
    HostCopies().wait()


@gpu
@needs_gpu
def test_copies_are_those_before_a_later_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_copies, "MOST", 3 << 20)  # so that some are waited for
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
