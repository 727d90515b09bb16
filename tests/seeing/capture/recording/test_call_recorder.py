"""CallRecorder: calls keep their order whichever way they came, and errors are named."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import attend, watch
from regard.seeing.capture.recording import call_recorder
from regard.seeing.capture.taps import sdpa_tap

if TYPE_CHECKING:
    import pytest


class Mixed(nn.Module):
    """Four ways to attend, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x, mask)
        x = self.fused(x, x, x)[0]
        x = torch.softmax(x @ x.mT, -1) @ x
        return attend(x, x, x)


def test_only_one_thread_at_a_time_waits_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of copies is not made for two readers."""
    recorder = call_recorder.CallRecorder()
    inside, overlaps = threading.Semaphore(1), list[bool]()
    second = threading.Event()

    def wait() -> None:
        alone = inside.acquire(blocking=False)
        overlaps.append(not alone)
        if alone:
            second.wait(0.2)  # time for the other to come in
            inside.release()
        else:
            second.set()

    monkeypatch.setattr(recorder.storage, "wait_for_copies", wait)
    threads = [threading.Thread(target=recorder.settle) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [False, False]


def test_calls_are_listed_in_the_order_they_were_made() -> None:
    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    assert [call.origin.partition(",")[0] for call in seen] == [
        "sdpa",
        "nn.MultiheadAttention",
        "softmax in its own code",
        "regard.attend",
    ]
    assert seen.faithful


def test_an_error_in_a_record_is_named_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(call: object) -> None:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(sdpa_tap, "_record", fails)
    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    assert len(seen) == 3
    assert seen.missed == ["Mixed: the call could not be recorded: on purpose"]
    assert seen.faithful is False


def test_long_masks_are_shortened_when_the_watch_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_recorder, "LONG_MASKS", 150 * 150)
    model, mask = Mixed().train(), torch.ones(150, 150, dtype=torch.bool).tril()
    with watch(model) as seen:
        model(torch.randn(1, 150, 8), mask)
    assert not seen._recorder._pending
    assert seen[0].record.energies.mask is not None
    assert seen[0].record.energies.mask.causal_offset == 0


def test_what_was_seen_is_freed_with_it() -> None:
    import weakref

    model = Mixed().train()
    with watch(model) as seen:
        model(torch.randn(1, 5, 8))
    recorder = weakref.ref(seen._recorder)
    del seen
    assert recorder() is None  # at once: not only when cycles are collected
