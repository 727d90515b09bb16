"""Who may send requests to the viewer, and how large: its own page, from this machine; others with a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from regard.viewer import limits
from regard.viewer.data.library import Library
from regard.viewer.data.trace_view import TraceView
from regard.viewer.http.server import Server, serving
from tests.support.viewer_client import answered, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(Library([TraceView.of(seen_of())])) as server, httpx.Client(base_url=server.address) as client:
        yield client


def test_the_page_may_run_its_own_scripts_and_no_others(client: httpx.Client) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "//" not in answer.text.replace("http://www.w3.org", "")  # nothing from elsewhere
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "2130706433"])
def test_another_name_for_this_machine_is_not_answered(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/about", headers={"Host": host})
    assert answer.status_code in (400, 421)
    assert "traces" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_other_sites_cannot_start_work(client: httpx.Client, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/api/traces"), ("GET", "/api/about"), ("OPTIONS", "/api/traces")):
        answer = client.request(method, path, headers={"Content-Type": "text/plain", **headers}, content=b"{}")
        assert answer.status_code == 403
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_link_from_elsewhere_opens_the_page(client: httpx.Client) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/", headers=headers | {"Sec-Fetch-Dest": "iframe"}).status_code == 403


def test_large_bodies_are_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post("/api/traces", content=b"x" * (limits.BODY + 1))
    assert answer.status_code == 413
    assert "131,072" in answer.json()["error"]

    def endless() -> Iterator[bytes]:  # chunked: it does not say how long it is
        for _ in range(64):
            yield b" " * 65536

    monkeypatch.setattr(limits, "UPLOAD", limits.BODY)
    for path in ("/api/traces", "/api/translate", "/api/caption"):
        answer = client.post(path, content=endless(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "more than 131,072 bytes" in answer.json()["error"]
    assert client.get("/api/about").status_code == 200


def test_others_need_the_token() -> None:
    server = Server(Library([TraceView.of(seen_of())]), host="0.0.0.0")
    assert server.token
    assert server.token in server.url
    transport = httpx.ASGITransport

    async def tried() -> None:
        async with httpx.AsyncClient(transport=transport(server.app), base_url="http://anything:1") as client:
            for path in ("/", "/api/about", "/static/shell/shell.js", "/?token=wrong", "/?token="):
                assert (await client.get(path)).status_code == 401
            into = await client.get(f"/?token={server.token}")
            assert into.status_code == 303
            assert server.token not in into.headers["location"]
            assert "HttpOnly" in into.headers["set-cookie"]
            assert "SameSite=Lax" in into.headers["set-cookie"]
            assert (await client.get("/api/about")).status_code == 200  # by the cookie
            for site in ("same-site", "cross-site"):  # which may come with what another site causes
                assert (await client.post("/api/traces", headers={"Sec-Fetch-Site": site})).status_code == 403
                assert (await client.get("/api/about", headers={"Sec-Fetch-Site": site})).status_code == 403
            bearer = {"Authorization": f"Bearer {server.token}"}
            async with httpx.AsyncClient(transport=transport(server.app), base_url="http://anything:1") as other:
                assert (await other.get("/api/about", headers=bearer)).status_code == 200

    answered(tried())
