"""The worker: the limit of its queue."""

from __future__ import annotations

import threading

import pytest

from regard.viewer import limits
from regard.viewer.http.worker import HIGH, QueueFull, Worker


def test_a_full_queue_refuses_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING", 3)
    worker, go = Worker("test"), threading.Event()
    first = worker.submit(go.wait)
    while not first.running():
        pass
    waiting = [worker.submit(lambda: 1) for _ in range(3)]
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        worker.submit(lambda: 1)
    assert waiting[1].cancel()
    assert worker.waiting == 2
    assert worker.submit(lambda: 2, HIGH).cancel()  # a cancelled job takes no place in the queue
    last = worker.submit(lambda: 3)
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        worker.submit(lambda: 1)
    go.set()
    assert (waiting[0].result(5), waiting[2].result(5), last.result(5)) == (1, 1, 3)
    worker.close()
