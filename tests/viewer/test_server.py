"""The server: its addresses, and ports that are taken."""

from __future__ import annotations

import httpx
import pytest

from regard.viewer.library import Library
from regard.viewer.server import Server, loopback
from tests.support.viewer_client import answered


def test_what_is_loopback() -> None:
    """Only there `--no-token` is possible."""
    assert all(map(loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(loopback, ("0.0.0.0", "192.168.1.5", "::", "example.org")))


def test_any_address_of_this_machine_is_answered_by_its_name() -> None:
    try:
        server = Server(Library(), host="127.0.0.2")
    except ValueError:
        pytest.skip("this system has one loopback address")

    async def tried() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url=server.address) as client:
            client.headers.update(server.headers)
            assert (await client.get("/api/about")).status_code == 200
            assert (await client.get("/api/about", headers={"Host": "127.0.0.3"})).status_code == 421

    answered(tried())


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    first = Server(Library())
    port = int(first.address.rsplit(":", 1)[1])
    with pytest.raises(ValueError, match=f"port {port}.*choose another --port"):
        Server(Library(), port=port)
