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
import html
import json
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser

from .. import limits
from .body_drain import BodyDrain

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        self.drain = BodyDrain(limits.DRAIN, limits.DRAIN_SECONDS, limits.DRAINS)
        self.stranger_drain = BodyDrain(limits.STRANGER_DRAIN, limits.STRANGER_DRAIN_SECONDS, limits.STRANGER_DRAINS)
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
    return limits.UPLOAD if path in ("/api/caption", "/api/listen") else limits.BODY


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
