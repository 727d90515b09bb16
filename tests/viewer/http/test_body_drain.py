"""What a server reads of a refused body: little from a client without the token, and from few of them at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `view`")

from regard.viewer import limits
from regard.viewer.http.guard import Guard

CHUNK = 1 << 16


class Request:
    """A POST with a body without an end, which waits for `go` before each chunk."""

    def __init__(self, *, token: str = "", go: asyncio.Event | None = None) -> None:
        headers = {"host": "localhost", "content-length": "99999999", "authorization": f"Bearer {token}"}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.scope = {"type": "http", "method": "POST", "path": "/api/traces", "query_string": b"", "headers": encoded}
        self.size, self.go = 0, go
        self.messages: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        if self.go is not None:
            await self.go.wait()
        self.size += CHUNK
        return {"type": "http.request", "body": b" " * CHUNK, "more_body": self.size < 99_999_999}

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    async def run(self, guard: Guard) -> tuple[int, bool]:
        """The status of the answer, and whether the connection is closed."""
        await guard(self.scope, self.receive, self.send)
        return self.messages[0]["status"], (b"connection", b"close") in self.messages[0]["headers"]


async def no_application(*_: Any) -> None:
    raise AssertionError("the request is refused")


def make_guard() -> Guard:
    return Guard(no_application, frozenset({"localhost"}), token="secret")


def test_little_is_read_from_a_client_without_the_token() -> None:
    stranger, owner = Request(), Request(token="secret")
    assert asyncio.run(stranger.run(make_guard())) == (401, True)
    assert limits.STRANGER_DRAIN < stranger.size <= limits.STRANGER_DRAIN + CHUNK
    assert asyncio.run(owner.run(make_guard())) == (413, True)
    assert limits.DRAIN < owner.size <= limits.DRAIN + CHUNK


def test_another_host_name_is_refused_as_early() -> None:
    request = Request()
    request.scope["headers"] = [(b"host", b"elsewhere.example")]
    assert asyncio.run(request.run(make_guard())) == (421, True)
    assert request.size <= limits.STRANGER_DRAIN + CHUNK


def test_a_client_that_sends_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRANGER_DRAIN_SECONDS", 0.01)

    async def refused() -> tuple[int, bool]:
        return await Request(go=asyncio.Event()).run(make_guard())

    assert asyncio.run(refused()) == (401, True)


def test_beyond_a_number_of_clients_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRANGER_DRAIN_SECONDS", 60.0)

    async def refused() -> None:
        guard, go = make_guard(), asyncio.Event()
        clients = [Request(go=go) for _ in range(limits.STRANGER_DRAINS)]
        tasks = [asyncio.create_task(client.run(guard)) for client in clients]
        while guard.stranger_drain.active < limits.STRANGER_DRAINS:
            await asyncio.sleep(0)
        last = Request(go=go)
        assert await last.run(guard) == (401, True)
        assert last.size == 0
        assert (await Request(token="secret").run(guard))[0] == 413  # the owner's requests are counted apart
        go.set()
        assert {status for status, _ in await asyncio.gather(*tasks)} == {401}
        assert guard.stranger_drain.active == 0

    asyncio.run(refused())
