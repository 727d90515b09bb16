"""Connections that send or read too slowly are closed; those that are quick are not."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from regard.viewer.data.library import Library
from regard.viewer.data.trace_view import TraceView
from regard.viewer.http import connection_timeouts
from regard.viewer.http.server import serving
from tests.support.viewer_client import client_of, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard.viewer.http.server import Server

SHORT = 0.4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("FIRST", "REQUEST", "READ"):
        monkeypatch.setattr(connection_timeouts, name, SHORT)
    with serving(Library([TraceView.of(seen_of(length=300, heads=4))])) as server:
        yield server


def connected(server: Server) -> socket.socket:
    host, port = server.address.removeprefix("http://").rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.settimeout(30)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it, waiting for that; what it still sends is read."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return True


HEAD = b"POST /api/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "part",
    [b"", b"G", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"],
    ids=["nothing", "a byte", "half of the headers", "half of the body", "half of a chunk"],
)
def test_half_a_request_is_not_waited_for(server: Server, part: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(part.replace(b"\r\n", f"\r\nAuthorization: Bearer {server.token}\r\n".encode(), 1))
        assert is_closed(connection)


def test_a_byte_now_and_then_does_not_keep_it_open(server: Server) -> None:
    with connected(server) as connection:
        ending = time.monotonic() + 20
        try:
            while time.monotonic() < ending:
                connection.sendall(b"X")
                time.sleep(SHORT / 8)
        except OSError:
            return
    pytest.fail("it is still open")


def test_after_an_answer_half_a_request_is_not_waited_for_either(server: Server) -> None:
    with connected(server) as connection:
        token = f"Authorization: Bearer {server.token}\r\n".encode()
        connection.sendall(b"GET /api/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n" + token + b"\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /api")
        assert is_closed(connection)


def test_an_answer_that_nobody_reads_is_dropped(server: Server) -> None:
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        trace = next(iter(server.app.state.jobs.library.traces))
        token = f"Authorization: Bearer {server.token}\r\n".encode()
        line = f"GET /api/traces/{trace}/calls/0/weights HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
        for _ in range(8):  # more than the buffers of the system hold
            connection.sendall(line + token + b"\r\n")
        ending = time.monotonic() + 30
        while server._server.server_state.connections:
            assert time.monotonic() < ending, "it is still open"
            time.sleep(0.05)


def test_who_is_quick_is_answered(server: Server) -> None:
    with client_of(server) as client:
        for _ in range(3):
            assert client.get("/api/about").status_code == 200
            time.sleep(SHORT * 1.5)  # idle between two requests, which uvicorn allows for longer
