"""Reading the rest of a refused body, so that the client gets the answer.

A server that closes a connection with unread data resets it, and the client loses the answer that it was sent.

Guard: middleware before every route that checks Host, Origin, token and body size, and adds security headers.

A page on the internet can make a browser send requests to this machine. It cannot read the responses (no CORS headers
are ever sent), but it must not start computations either. So the Host header must be one of ours (against DNS
rebinding), and a cross-site request is refused.

Other users of this machine can connect to it too. So every request carries a token, which only the person who started
the server knows: `/?token=…` moves it into a cookie. A second cookie tells browsers apart, so that one does not list
the texts that were read in another.

Timeouts of connections: one that sends its request, or reads its answer, too slowly is closed.

uvicorn closes a connection that is idle between two requests. It waits without end for a client that sends half a
request or does not read, and a few hundred of those would use up the server's sockets.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode

import h11
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyDrain:
    """Reads and forgets at most `size` bytes, for at most `seconds`, of at most `count` requests at a time."""

    def __init__(self, size: int, seconds: float, count: int) -> None:
        self.size, self.seconds, self.count = size, seconds, count
        self.active = 0

    async def read(self, receive: Receive) -> bool:
        """Whether the body ended. If not, the connection is to be closed."""
        if self.active >= self.count:
            return False
        self.active += 1
        try:
            async with asyncio.timeout(self.seconds):
                return await self._read(receive)
        except TimeoutError:
            return False
        finally:
            self.active -= 1

    async def _read(self, receive: Receive) -> bool:
        size = 0
        while size <= self.size:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return True
        return False


TEXT = 20_000
"""Characters of an input text."""
BODY = 1 << 17
"""Bytes of a JSON request."""
UPLOAD = 16 << 20
"""Bytes of an uploaded picture or sound."""
DRAIN = 64 << 20
"""Bytes of a refused body that are read and forgotten, so that the client gets the answer …"""
DRAIN_SECONDS = 10.0
"""… for so long at most …"""
DRAINS = 16
"""… of so many requests at a time."""
STRANGER_DRAIN = 1 << 20
"""The same for a client without the token."""
STRANGER_DRAIN_SECONDS = 2.0
STRANGER_DRAINS = 8
CELLS = 1 << 22
"""Numbers in one response."""
SIDE = 512
"""Cells along one side of a tile."""
GENERATED = 256
"""New tokens of a language model."""
BEAMS = 16
MODELS = 4
"""Models of one request, compared side by side."""
TRACES = 16
"""Traces of texts read through the page; the oldest is removed first. Pinned traces are not counted."""
WAITING = 512
"""Jobs in a worker's queue."""
PLACES = 1 << 20
"""Queries, or keys, of a call."""
MATRICES = 1 << 16
"""Batch entries × heads of one call."""
VECTORS = 1 << 33
"""Bytes of one call's queries, or keys, over all heads."""
EXPLAINED = 1024
"""Tokens of a text whose contributions are computed: a backward pass keeps what every layer computed."""
RUNS = 1 << 30
"""Bytes of the cache of runs with a backward pass."""
MEMORY = 512 << 20
"""Bytes of the pyramid cache; the cache of encoded arrays has a quarter of it."""


def public() -> dict[str, int]:
    """The limits that `GET /api/about` reports."""
    return {
        "text": TEXT,
        "upload": UPLOAD,
        "cells": CELLS,
        "side": SIDE,
        "generated": GENERATED,
        "beams": BEAMS,
        "models": MODELS,
        "explained": EXPLAINED,
    }


class RequestError(ValueError):
    """A request that cannot be answered: the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ClientDisconnected(Exception):
    """The client closed the connection before the response was ready."""


LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")
"""A Host header, in lower case: a name or an address, and a port."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}

NO_TOKEN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>regard: the token is missing</title>
</head>
<body>
<h1>This link needs the token of its server</h1>
<p>Only who knows the token may use this server. Open the whole address that <code>{command}</code> printed, or ask for
the link with the token (Export, “Copy the link with the token”); after that, links without it open too.</p>
</body>
</html>
"""
"""What a browser shows that opens the page without the token."""


class Guard:
    """`hosts` are the allowed names in Host headers (empty: any); with a `token`, every request must carry it.

    `open_paths` need no token; `command` is what printed the address; `body_limit` are the bytes allowed to a path.
    Without a `page` there is no address to open in a browser: a refused client is told which header to send.

    Browsers send the cookies of one port to every other port of a machine, so `port` is part of their names.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        token: str | None = None,
        port: int = 0,
        *,
        command: str = "regard view",
        page: bool = True,
        open_paths: frozenset[str] = frozenset(),
        body_limit: Callable[[str], int] | None = None,
    ) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self.command, self.page = command, page
        self.open_paths, self.body_limit = open_paths, body_limit or _body_limit
        self.drain = BodyDrain(DRAIN, DRAIN_SECONDS, DRAINS)
        self.stranger_drain = BodyDrain(STRANGER_DRAIN, STRANGER_DRAIN_SECONDS, STRANGER_DRAINS)
        self.token_cookie, self.session_cookie = f"regard-token-{port}", f"regard-session-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        cookies = cookie_parser(headers.get("cookie", ""))  # other ports' cookies come too, and may be malformed
        refusal = self._refusal(scope, headers, cookies)
        has_token = self.token is None or self._has_token(scope, headers, cookies)
        drain = self.drain if has_token else self.stranger_drain
        if refusal is not None:
            status, reason = refusal
            more: dict[str, str] = {}
            if headers.get("expect", "").lower() != "100-continue":  # else the client waits before it sends the body
                more = {} if await drain.read(receive) else {"Connection": "close"}
            if status == 401 and not self.page:
                more["WWW-Authenticate"] = "Bearer"
            if status == 401 and self.page and scope["path"] == "/" and "text/html" in headers.get("accept", ""):
                await _respond_page(send, status, NO_TOKEN.format(command=html.escape(self.command)), more)
            else:
                await _respond(send, status, reason, more)
            return
        if self.token is not None and _query_token(scope) and scope["path"] == "/":  # from the address bar to a cookie
            location = {"Location": _without_token(scope), "Set-Cookie": _cookie(self.token_cookie, self.token)}
            await _respond(send, 303, "", location)
            return
        session = cookies.get(self.session_cookie, "")
        scope.setdefault("state", {}).update(session=session, token=self.token)
        added = dict(HEADERS)
        if not session and scope["path"] == "/":
            added["Set-Cookie"] = _cookie(self.session_cookie, secrets.token_urlsafe(12))
        body = _limited(receive, self.body_limit(scope["path"]), drain)
        await self.app(scope, body, _with_headers(send, added))

    def _refusal(self, scope: Scope, headers: dict[str, str], cookies: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = HOST.fullmatch(host.lower())
        if name is None or (self.hosts and name[1] not in self.hosts):
            verb = "open" if self.page else "use"
            return 421, f"this server is not called {host!r:.80}; {verb} the address that {self.command} printed"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not _opens_page(
            scope, headers
        ):
            return 403, "cross-site requests are refused"
        origin = headers.get("origin")
        if origin is not None and origin.split("://", 1)[-1] != host:
            return 403, f"requests from the origin {origin} are refused; this server is {host}"
        secret = self.token is not None and scope["path"] not in self.open_paths
        if secret and not self._has_token(scope, headers, cookies):
            advice = f"open the whole address that {self.command} printed"
            if not self.page:
                advice = f"send the header Authorization: Bearer TOKEN, with the token of {self.command}"
            return 401, f"the token is missing or wrong; {advice}"
        size = headers.get("content-length", "0")
        limit = self.body_limit(scope["path"])
        if not size.isdigit() or int(size) > limit:
            return 413, f"the request has {size} bytes; at most {limit:,} are allowed"
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str], cookies: dict[str, str]) -> bool:
        assert self.token is not None
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        tokens = (cookies.get(self.token_cookie, ""), _query_token(scope), bearer)
        return any(hmac.compare_digest(token.encode(), self.token.encode()) for token in tokens)


def _cookie(name: str, value: str) -> str:
    # Lax, not Strict: with Strict the cookie would be missing after the 303 when the link was on another site.
    # Cross-site requests are refused in `_refusal`.
    return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax"


def _opens_page(scope: Scope, headers: dict[str, str]) -> bool:
    """Whether somebody follows a link to the page: allowed from any site. Links to the API are not."""
    if scope["method"] != "GET" or scope["path"] != "/":
        return False
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"))


def _query_token(scope: Scope) -> str:
    return _query(scope).get("token", [""])[-1]


def _body_limit(path: str) -> int:
    return UPLOAD if path in ("/api/caption", "/api/listen") else BODY


def _without_token(scope: Scope) -> str:
    query = urlencode({name: values for name, values in _query(scope).items() if name != "token"}, doseq=True)
    return "/" + (f"?{query}" if query else "")


def _limited(receive: Receive, limit: int, drain: BodyDrain) -> Receive:
    """Stop reading a body at its limit: a chunked body does not say its length."""
    count = 0

    async def read() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit:  # FastAPI turns every other exception into a 400
            if message.get("more_body", False):
                await drain.read(receive)
            raise HTTPException(413, f"the request has more than {limit:,} bytes, which is the limit")
        return message

    return read


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def write(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in _encoded(headers) if name not in present]
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return write


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def _respond(send: Send, status: int, error: str, more: dict[str, str] | None = None) -> None:
    body = json.dumps({"error": error}, ensure_ascii=False).encode() if error else b""
    await _send_body(send, status, body, {"Content-Type": "application/json", **(more or {})})


async def _respond_page(send: Send, status: int, page: str, more: dict[str, str]) -> None:
    await _send_body(send, status, page.encode(), {"Content-Type": "text/html; charset=utf-8", **more})


async def _send_body(send: Send, status: int, body: bytes, more: dict[str, str]) -> None:
    headers = {"Content-Length": str(len(body)), **HEADERS, **more}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})


REQUEST = 60.0
"""Seconds for a whole request, from the connection or its first byte to the end of its body."""
FIRST = 15.0
"""Seconds from the connection to the first request's headers."""
READ = 60.0
"""Seconds in which a client must read on once the server's send buffer is full."""
CONNECTIONS = 512
"""Open connections; further ones get a 503."""

INCOMPLETE = (h11.IDLE, h11.SEND_BODY)
"""States of a client that has not sent its whole request."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that a client may take."""

    receiving: asyncio.TimerHandle | None = None
    sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.receiving = self.loop.call_later(FIRST, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        state = self.conn.their_state
        if state not in INCOMPLETE:
            self._stop_receiving()
        elif self.receiving is None or (
            before is h11.IDLE and state is h11.SEND_BODY
        ):  # a request, or its body, begins
            self._stop_receiving()
            self.receiving = self.loop.call_later(REQUEST, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.sending is None:
            self.sending = self.loop.call_later(READ, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_sending()
        super().connection_lost(exc)

    def _stop_receiving(self) -> None:
        if self.receiving is not None:
            self.receiving.cancel()
            self.receiving = None

    def _stop_sending(self) -> None:
        if self.sending is not None:
            self.sending.cancel()
            self.sending = None


def options() -> dict[str, Any]:
    """What `uvicorn.Config` is given."""
    return {"http": TimedProtocol, "limit_concurrency": CONNECTIONS, "timeout_keep_alive": 5}
