"""Responses: compressed, and not sent again while they are unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.viewer.data.library import Library
from regard.viewer.data.trace_view import TraceView
from regard.viewer.http.server import serving
from tests.support.viewer_client import client_of, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(Library([TraceView.of(seen_of())])) as server, client_of(server) as client:
        yield client


def test_unchanged_answers_are_not_sent_again(client: httpx.Client) -> None:
    root = f"/api/traces/{client.get('/api/traces').json()[0]['id']}"
    path = f"{root}/calls/0/tile?top=0&left=0&bottom=13&right=13&height=13&width=13"
    first = client.get(path)
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_bytes_and_json_are_packed(client: httpx.Client) -> None:
    root = f"/api/traces/{client.get('/api/traces').json()[0]['id']}"
    assert client.get(root).headers["content-encoding"] == "gzip"
    assert client.get(f"{root}/thumbs").headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get(f"{root}/thumbs", headers={"Accept-Encoding": "identity"}).headers
