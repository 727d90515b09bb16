"""Guard: middleware before every route that checks Host, Origin, token and body size, and adds security headers.

A page on the internet can make a browser send requests to this machine. It cannot read the responses (no CORS headers
are ever sent), but it must not start computations either. So the Host header must be one of ours (against DNS
rebinding), and a cross-site request is refused.

Other users of this machine can connect to it too. So every request carries a token, which only the person who started
the server knows: `/?token=…` moves it into a cookie. A second cookie tells browsers apart, so that one does not list
the texts that were read in another.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import h11
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from .responses import STATIC

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TEXT = 20_000
"""Characters of an input text."""
BODY = 1 << 17
"""Bytes of a JSON request."""
UPLOAD = 16 << 20
"""Bytes of an uploaded picture or sound."""
DRAIN = 64 << 20
"""Bytes of a refused body that are read and forgotten."""
UPLOADS = ("/api/caption", "/api/listen")
"""Routes that take files."""
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
PLACES = 1 << 20
"""Queries, or keys, of a call."""
EXPLAINED = 1024
"""Tokens of a text whose contributions are computed: a backward pass keeps what every layer computed."""
MEMORY = 1 << 30
"""Bytes of what is cached: maps, tiles, and runs with a backward pass."""


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
ANY_ADDRESS = frozenset({"0.0.0.0", "[::]"})
HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")
"""A Host header, in lower case: a name or an address, and a port."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
COOKIE: dict[str, Any] = {"httponly": True, "samesite": "lax"}
"""Lax, not Strict: with Strict the cookie would be missing after the 303 when the link was on another site. Cross-site
requests are refused by the guard."""


class Guard:
    """`hosts` are the allowed names in Host headers; with a `token`, every request must carry it.

    With "0.0.0.0" or "[::]" among the `hosts`, every address is allowed: DNS rebinding needs a name.

    `open_paths` need no token; `body` are the bytes that a request may have. Without a `page`, as in `regard serve`,
    there is no address to open in a browser: a refused client is told which header to send.

    Browsers send the cookies of one port to every other port of a machine, so `port` is part of their names.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str],
        token: str | None = None,
        port: int = 0,
        *,
        page: bool = True,
        open_paths: frozenset[str] = frozenset(),
        body: int = BODY,
    ) -> None:
        self.app, self.hosts, self.token = app, hosts, token
        self.page, self.open_paths, self.body = page, open_paths, body
        self.token_cookie, self.session_cookie = f"regard-token-{port}", f"regard-session-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        session = request.cookies.get(self.session_cookie, "")

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = Response(headers=HEADERS)
                if self.page and not session and scope["path"] == "/":
                    response.set_cookie(self.session_cookie, secrets.token_urlsafe(12), **COOKIE)
                present = {name for name, _ in message["headers"]} | {b"content-length"}
                added = [header for header in response.raw_headers if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if (refusal := self._refusal(request)) is not None:
            await _drain(receive)
            await self._refused(request, *refusal)(scope, receive, guarded_send)
        elif self.token is not None and self.page and scope["path"] == "/" and "token" in request.query_params:
            others = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
            opened = RedirectResponse(f"/?{urlencode(others)}" if others else "/", 303)
            opened.set_cookie(self.token_cookie, self.token, **COOKIE)  # from the address bar to a cookie
            await opened(scope, receive, guarded_send)
        else:
            scope.setdefault("state", {}).update(session=session, token=self.token)
            await self.app(scope, self._limited(request, receive), guarded_send)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        """The status and the reason, where the request is refused."""
        headers, path = request.headers, request.scope["path"]
        host = headers.get("host", "")
        if not self._is_own(host):
            advice = "open the address that regard view" if self.page else "use the address that regard serve"
            return 421, f"this server is not called {host!r:.80}; {advice} printed"
        own_site = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not own_site and not _opens_page(request):
            return 403, "cross-site requests are refused"
        origin = headers.get("origin")
        if origin not in (None, f"http://{host}", f"https://{host}"):
            return 403, f"requests from the origin {origin} are refused; this server is {host}"
        if path not in self.open_paths and not self._has_token(request):
            advice = "open the whole address that regard view printed"
            if not self.page:
                advice = "send the header Authorization: Bearer TOKEN, with the token of regard serve"
            return 401, f"the token is missing or wrong; {advice}"
        return None

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server."""
        match = HOST.fullmatch(host.lower())
        if match is None or match[1] in self.hosts:
            return match is not None
        try:
            ipaddress.ip_address(match[1].strip("[]"))
        except ValueError:
            return False
        return not ANY_ADDRESS.isdisjoint(self.hosts)

    def _has_token(self, request: Request) -> bool:
        if self.token is None:
            return True
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        tokens = [request.cookies.get(self.token_cookie, ""), request.query_params.get("token", "")]
        tokens += [bearer] if scheme.lower() == "bearer" else []
        return any(hmac.compare_digest(token.encode(), self.token.encode()) for token in tokens)

    def _refused(self, request: Request, status: int, reason: str) -> Response:
        if status == 401 and not self.page:
            return JSONResponse({"error": reason}, status, {"WWW-Authenticate": "Bearer"})
        if status == 401 and request.scope["path"] == "/" and "text/html" in request.headers.get("accept", ""):
            return HTMLResponse((STATIC / "token.html").read_text(encoding="utf-8"), status)
        return JSONResponse({"error": reason}, status)

    def _limited(self, request: Request, receive: Receive) -> Receive:
        """Stop reading a body at its limit."""
        size, limit = 0, UPLOAD if request.scope["path"] in UPLOADS else self.body

        async def read() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                if message.get("more_body", False):
                    await _drain(receive)
                # FastAPI turns every other exception into a 400
                raise HTTPException(413, f"the request has more than {limit:,} bytes, which is the limit")
            return message

        return read


def _opens_page(request: Request) -> bool:
    """Whether somebody follows a link to the page: allowed from any site. Links to the API are not."""
    if request.method != "GET" or request.scope["path"] != "/":
        return False
    headers = request.headers
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


async def _drain(receive: Receive) -> None:
    """Read and forget the rest of a refused body: where a connection is closed with unread data, its client loses the
    answer."""
    size, more = 0, True
    while more and size < DRAIN:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)


FIRST, REQUEST, READ = 15.0, 60.0, 60.0
"""Seconds from the connection to the first request's headers; for a whole request, from its first byte to the end of
its body; and in which a client must read on once the server's send buffer is full."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that a client may take to send its request, and to read its answer.

    uvicorn closes a connection that is idle between two requests. It waits without end for a client that sends half a
    request or does not read, and a few hundred of those would use up the server's sockets.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self._begin("receiving", FIRST)

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        state = self.conn.their_state
        if state not in (h11.IDLE, h11.SEND_BODY):
            self._end("receiving")
        elif "receiving" not in self.timers or (before is h11.IDLE and state is h11.SEND_BODY):
            self._begin("receiving", REQUEST)  # a request, or its body, begins

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin("sending", READ)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end("sending")

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self.timers):
            self._end(name)
        super().connection_lost(exc)

    def _begin(self, name: str, seconds: float) -> None:
        self._end(name)
        self.timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _end(self, name: str) -> None:
        if name in self.timers:
            self.timers.pop(name).cancel()
