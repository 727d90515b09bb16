"""Every request is counted once, with the status of its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from regard.serving.serve_metrics import RequestCounter, ServeMetrics

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

START: Message = {"type": "http.response.start", "status": 418, "headers": []}


@pytest.mark.parametrize(("responds", "status"), [(False, 500), (True, 418)])
def test_a_request_that_ends_in_an_error_is_counted_once(responds: bool, status: int) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if responds:
            await send(START)
        raise ZeroDivisionError

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    sent: list[Any] = []

    async def send(message: Message) -> None:
        assert f'{{route="/task",status="{status}"}} 1' in metrics.text(0), "counted before it is sent"
        sent.append(message)

    metrics = ServeMetrics()
    counter = RequestCounter(broken, metrics, "/task", frozenset({"/health"}))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(counter({"type": "http", "path": "/task"}, receive, send))
    assert sent == [START] * responds
    lines = metrics.text(0).splitlines()
    assert [line for line in lines if line.startswith("regard_requests_total")] == [
        f'regard_requests_total{{route="/task",status="{status}"}} 1'
    ]
    assert "regard_request_seconds_count 1" in lines
