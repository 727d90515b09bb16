"""Responses: compressed, and not sent again while they are unchanged."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from regard.viewer.library import Library
from regard.viewer.responses import SCRIPT, STATIC, STYLES, view_names
from regard.viewer.server import serving
from regard.viewer.trace_view import TraceView
from tests.golden.make import difference
from tests.support.viewer_client import client_of, seen_of
from tools import viewer_javascript

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serving(Library([TraceView.of(seen_of())])) as server, client_of(server) as client:
        yield client


def test_files_of_the_page_are_packed_and_kept_by_the_browser(client: httpx.Client) -> None:
    first = client.get(f"/static/{SCRIPT}")
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["content-type"].startswith("text/javascript")
    assert client.get(f"/static/bundle/{first.headers['sourcemap']}").status_code == 200
    again = client.get(f"/static/{SCRIPT}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.headers["cache-control"]) == (304, "no-cache")


def test_json_is_packed_and_numbers_are_not(client: httpx.Client) -> None:
    root = f"/api/traces/{client.get('/api/traces').json()[0]['id']}"
    assert client.get(root).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.get(root, headers={"Accept-Encoding": "identity"}).headers
    assert "content-encoding" not in client.get(f"{root}/thumbs").headers


def test_every_view_exports_itself_under_its_name() -> None:
    table = (STATIC / "views" / "index.js").read_text()
    for name in view_names():
        path = re.search(rf'import {{ {name} }} from "\./([\w/]+\.js)";', table)
        assert path is not None, name
        module = (STATIC / "views" / path[1]).read_text()
        assert re.search(rf'^export const {name} = {{\n  name: "{name}",$', module, re.MULTILINE), path[1]


def test_what_the_bundle_is_made_of_is_served() -> None:
    known = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*")}
    assert {SCRIPT, STYLES} <= known
    sources = json.loads((STATIC / f"{SCRIPT}.map").read_text())["sources"]
    modules = {name for name in known if name.endswith(".js") and name != SCRIPT}
    assert {source.removeprefix("../") for source in sources} <= modules


def test_shared_numbers_are_current() -> None:
    assert viewer_javascript.CONSTANTS.read_text() == viewer_javascript.constants()


def test_expected_numbers_are_current() -> None:
    kept = json.loads(viewer_javascript.EXPECTED.read_text())
    assert difference(viewer_javascript.expected(), kept, 1e-9) is None
