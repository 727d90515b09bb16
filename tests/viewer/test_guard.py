"""Who is answered: with the token, by a name of this machine, from no other site, and quick enough."""

from __future__ import annotations

import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
import pytest

from regard.viewer import guard
from regard.viewer.library import SAMPLES, Library, installed_models
from regard.viewer.server import Server, loopback, serving
from regard.viewer.trace_view import TraceView
from tests.support.viewer_client import answered, client_of, seen_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("starlette", reason="needs the extra `view`")


SHORT = 0.4


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("FIRST", "REQUEST", "READ"):
        monkeypatch.setattr(guard, name, SHORT)
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
def test_half_a_request_is_not_waited_for(hasty: Server, part: bytes) -> None:
    with connected(hasty) as connection:
        connection.sendall(part.replace(b"\r\n", f"\r\nAuthorization: Bearer {hasty.token}\r\n".encode(), 1))
        assert is_closed(connection)


def test_a_byte_now_and_then_does_not_keep_it_open(hasty: Server) -> None:
    with connected(hasty) as connection:
        ending = time.monotonic() + 20
        try:
            while time.monotonic() < ending:
                connection.sendall(b"X")
                time.sleep(SHORT / 8)
        except OSError:
            return
    pytest.fail("it is still open")


def test_an_answer_that_nobody_reads_is_dropped(hasty: Server) -> None:
    with connected(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        trace = next(iter(hasty.app.state.jobs.library.traces))
        token = f"Authorization: Bearer {hasty.token}\r\n".encode()
        line = f"GET /api/traces/{trace}/calls/0/weights HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
        for _ in range(8):  # more than the buffers of the system hold
            connection.sendall(line + token + b"\r\n")
        ending = time.monotonic() + 30
        while hasty._server.server_state.connections:
            assert time.monotonic() < ending, "it is still open"
            time.sleep(0.05)


def test_who_is_quick_is_answered(hasty: Server) -> None:
    with client_of(hasty) as client:
        for _ in range(3):
            assert client.get("/api/about").status_code == 200
            time.sleep(SHORT * 1.5)  # idle between two requests, which uvicorn allows for longer


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Library([TraceView.of(seen_of())])) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as client:
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


HOSTS = [
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "",
    "2130706433",
    "127.0.0.1:80@evil.com",
    "127.0.0.1:evil.com",
    "evil.com@127.0.0.1",
    "127.0.0.1:80:80",
    "127.0.0.1:",
    "[::1]evil",
    "[::1]:80@evil.com",
    "127.0.0.1 evil",
    "127.0.0.1/evil",
]


@pytest.mark.parametrize("host", HOSTS)
def test_another_name_for_this_machine_is_not_answered(client: httpx.Client, host: str) -> None:
    answer = client.get("/api/about", headers={"Host": host})
    assert answer.status_code in (400, 421)
    assert "traces" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "chrome-extension://{host}"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_other_sites_cannot_start_work(client: httpx.Client, headers: dict[str, str]) -> None:
    headers = {name: value.format(host=client.base_url.netloc.decode()) for name, value in headers.items()}
    for method, path in (("POST", "/api/traces"), ("GET", "/api/about"), ("OPTIONS", "/api/traces")):
        answer = client.request(method, path, headers={"Content-Type": "text/plain", **headers}, content=b"{}")
        assert answer.status_code == 403
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_large_bodies_are_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = client.post("/api/traces", content=b"x" * (guard.BODY + 1))
    assert answer.status_code == 413
    assert "131,072" in answer.json()["error"]

    def endless() -> Iterator[bytes]:  # chunked: it does not say how long it is
        for _ in range(64):
            yield b" " * 65536

    monkeypatch.setattr(guard, "UPLOAD", guard.BODY)
    for path in ("/api/traces", "/api/translate", "/api/caption"):
        answer = client.post(path, content=endless(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "more than 131,072 bytes" in answer.json()["error"]
    assert client.get("/api/about").status_code == 200


def first_line(client: httpx.Client, framing: str, content: bytes) -> str:
    """The first line of the answer to a request whose body is sent whole before anything is read."""
    address = client.base_url
    sent = client.build_request("POST", "/api/traces", headers={"Content-Type": "application/json"}).headers
    headers = {name: value for name, value in sent.items() if name not in ("connection", "content-length")}
    head = "\r\n".join(["POST /api/traces HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), framing])
    head += "\r\nConnection: close"  # as urllib sends it: the server closes the connection after its answer
    with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        return connection.recv(1024).split(b"\r\n")[0].decode()


def test_a_client_that_sends_all_of_a_refused_body_reads_the_answer(client: httpx.Client) -> None:
    """A connection that is closed with megabytes unread is reset, and the answer is lost."""
    body = b" " * (24 << 20)
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    assert first_line(client, f"Content-Length: {len(body)}", body)[:12] == "HTTP/1.1 413"
    assert first_line(client, "Transfer-Encoding: chunked", chunk)[:12] == "HTTP/1.1 413"
    with httpx.Client(base_url=client.base_url) as stranger:
        assert first_line(stranger, f"Content-Length: {len(body)}", body)[:12] == "HTTP/1.1 401"


def test_others_need_the_token() -> None:
    server = Server(Library([TraceView.of(seen_of())]), host="0.0.0.0", names=["box.example"])
    assert server.token
    assert server.token in server.url
    transport = httpx.ASGITransport

    async def tried() -> None:
        async with httpx.AsyncClient(transport=transport(server.app), base_url="http://192.0.2.7:1") as client:
            for name in ("anything", "2130706433", "192.0.2.7.evil.example"):
                assert (await client.get("/api/about", headers={"Host": name})).status_code == 421
            for path in ("/", "/api/about", "/static/shell/shell.js", "/?token=wrong", "/?token="):
                refusal = await client.get(path)
                assert refusal.status_code == 401
                assert "open the whole address that regard view printed" in refusal.json()["error"]
            into = await client.get(f"/?token={server.token}")
            assert into.status_code == 303
            assert server.token not in into.headers["location"]
            assert "HttpOnly" in into.headers["set-cookie"]
            assert "SameSite=lax" in into.headers["set-cookie"]
            assert "Path=/" in into.headers["set-cookie"]
            for attribute in ("Domain", "Expires", "Max-Age"):  # for this host alone, until the browser is closed
                assert attribute not in into.headers["set-cookie"]
            assert (await client.get("/api/about")).status_code == 200  # by the cookie
            for site in ("same-site", "cross-site"):  # which may come with what another site causes
                assert (await client.post("/api/traces", headers={"Sec-Fetch-Site": site})).status_code == 403
                assert (await client.get("/api/about", headers={"Sec-Fetch-Site": site})).status_code == 403
            bearer = {"Authorization": f"bearer {server.token}"}  # in any case
            for name in (socket.gethostname(), "[2001:db8::7]", "localhost:8000", "box.example:80"):
                async with httpx.AsyncClient(transport=transport(server.app), base_url=f"http://{name}") as other:
                    assert (await other.get("/api/about", headers=bearer)).status_code == 200

    answered(tried())


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost", "LOCALHOST:8888", "[::1]:80", "[::1]"])
def test_names_of_this_machine_are_answered(client: httpx.Client, host: str) -> None:
    """Through any port: ssh forwards another one."""
    assert client.get("/api/about", headers={"Host": host}).status_code == 200


def test_another_user_of_this_machine_needs_the_token(server: Server) -> None:
    assert server.token
    assert server.token in server.url
    with httpx.Client(base_url=server.address) as other:
        for path in ("/", "/api/about", "/api/traces", "/static/shell/shell.js", "/api/openapi.json", "/?token=x"):
            answer = other.get(path)
            assert (answer.status_code, "traces" in answer.text) == (401, False), path
        assert other.post("/api/translate", json={}).status_code == 401
        assert other.get("/api/about", headers={"Cookie": "regard-token-0=x; regard-session-0=x"}).status_code == 401
    with httpx.Client(base_url=server.address, follow_redirects=True) as owner:
        assert owner.get(server.url).status_code == 200
        assert owner.get("/api/about").status_code == 200
        port = server.address.rsplit(":", 1)[1]
        assert set(owner.cookies) == {f"regard-token-{port}", f"regard-session-{port}"}


def test_the_browser_is_opened_without_showing_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can read the command line of the browser, and not the file that it opens."""
    links: list[str] = []
    monkeypatch.setattr("webbrowser.open", links.append)
    with serving(Library([TraceView.of(seen_of())])) as server:
        server.open()
        page = Path(url2pathname(urlsplit(links[0]).path))
        assert links[0].startswith("file:")
        assert server.token
        assert server.token not in links[0]
        assert f'url={server.url}"' in page.read_text(encoding="utf-8")
        assert page.parent.stat().st_mode & 0o077 == 0
    deadline = time.monotonic() + 10
    while page.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not page.exists()


@pytest.mark.parametrize("foreign", ['theme={"a":1, "b":2}', "consent=yes no", "flag", "a@b=1", "name=é"])
def test_a_malformed_cookie_of_another_port_changes_nothing(server: Server, foreign: str) -> None:
    cookie = f"{foreign}; regard-token-{urlsplit(server.address).port}={server.token}".encode("latin-1")
    assert httpx.get(f"{server.address}/api/about", headers={"Cookie": cookie}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "into", "status"),
    [
        ("GET", "/", "document", 200),
        ("GET", "/", "iframe", 403),
        ("GET", "/api/about", "document", 403),
        ("POST", "/", "document", 403),
    ],
)
def test_another_site_may_link_to_the_page_alone(
    client: httpx.Client, method: str, path: str, into: str, status: int
) -> None:
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": into}
    assert client.request(method, path, headers=navigation).status_code == status


def test_without_a_token_only_on_this_machine() -> None:
    with serving(Library([TraceView.of(seen_of())]), token=False) as server:
        assert "token" not in server.url
        assert httpx.get(f"{server.address}/api/about").status_code == 200
    with pytest.raises(ValueError, match="leave out --no-token"):
        Server(Library(), host="0.0.0.0", token=False)


def test_a_text_that_was_read_in_two_browsers_is_listed_in_both() -> None:
    library = Library([TraceView.of(seen_of(), "of the server")])
    for title, length, session in (("mine", 5, "me"), ("ours", 6, "me"), ("ours", 6, "you")):
        library.add(TraceView.of(seen_of(length=length), title, owners={session}))
    for session, titles in (("me", {"mine", "ours"}), ("you", {"ours"}), ("", set())):
        assert {trace.title for trace in library.listed(session)} == titles | {"of the server"}


FIRST_CALL = "decoder.layers.0.attention"


def test_what_one_browser_posts_is_not_listed_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every route that takes a text, a picture or a sound. Uploads are not kept either."""
    library = Library([TraceView.of(seen_of())], [model for model in installed_models() if model.ours])
    pictures, sounds = ([x.read_bytes() for x in sorted(SAMPLES.glob(f"*.{kind}"))] for kind in ("png", "wav"))
    text = "a small film with a large heart"
    posts: dict[str, Any] = {
        "/api/traces": {"model": "opinions-lstm", "text": text},
        "/api/what-if": {"model": "shakespeare-transformer", "text": text, "silence": {FIRST_CALL: [0]}},
        "/api/classify": {"models": ["opinions-lstm"], "text": text},
        "/api/translate": {"models": ["tatoeba-bahdanau-en-fr"], "text": text, "beams": 1},
        "/api/next": {"model": "shakespeare-transformer", "text": text},
        "/api/inside": {"model": "shakespeare-transformer", "text": text},
        "/api/caption": pictures[0],
        "/api/listen": sounds[0],
    }
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with serving(library) as server, ExitStack() as stack:
        paths = server.app.openapi()["paths"]
        assert set(posts) == {path for path, item in paths.items() if "post" in item}
        mine, other = (
            stack.enter_context(httpx.Client(base_url=server.address, follow_redirects=True, timeout=300))
            for _ in range(2)
        )
        program = stack.enter_context(client_of(server))
        for browser in (mine, other):
            assert browser.get(server.url).status_code == 200
        for path, body in posts.items():
            sent = {"content": body} if isinstance(body, bytes) else {"json": body}
            answer = mine.post(path, **sent)
            assert answer.status_code in (200, 201), (path, answer.text)
            for stranger in (other, program):
                for listing in (stranger.get("/api/traces").json(), stranger.get("/api/about").json()["traces"]):
                    assert len(listing) == 1, f"{path} of one browser is listed in another: {listing}"
        assert len(mine.get("/api/traces").json()) == 3, "its own, by /api/traces and /api/what-if"
    assert not list(tmp_path.glob("regard-*")), "an upload is left"


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
