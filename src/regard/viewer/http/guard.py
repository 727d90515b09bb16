"""Guard: middleware before every route that checks Host, Origin, token and body size, and adds security headers.

A page on the internet can make a browser send requests to this machine. It cannot read the responses (no CORS headers
are ever sent), but it must not start computations either. So the Host header must be one of ours (against DNS
rebinding), and a cross-site request is refused.
"""

from __future__ import annotations

import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException

from .. import limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
COOKIE = "regard-token"
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


class Guard:
    """`hosts` are the allowed Host headers (empty: any); with a `token`, every request must carry it."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _respond(send, *refusal)
            return
        if self.token is not None and _query_token(scope) and scope["path"] == "/":  # from the address bar to a cookie
            await _respond(send, 303, "", {"Location": _without_token(scope), "Set-Cookie": self._cookie()})
            return
        await self.app(scope, _limited(receive, scope["path"]), _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts and name.lower() not in self.hosts:
            return 421, f"this server is not called {host!r:.80}; open the address that regard view printed"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not _is_navigation(headers):
            return 403, "cross-site requests are refused"
        origin = headers.get("origin")
        if origin is not None and origin.split("://", 1)[-1] != host:
            return 403, f"requests from the origin {origin} are refused; this server is {host}"
        if self.token is not None and not self._has_token(scope, headers):
            return 401, "the token is missing or wrong; open the whole address that regard view printed"
        size = headers.get("content-length", "0")
        limit = _body_limit(scope["path"])
        if not size.isdigit() or int(size) > limit:
            return 413, f"the request has {size} bytes; at most {limit:,} are allowed"
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        tokens = (cookie.value if cookie is not None else "", _query_token(scope), bearer)
        return any(hmac.compare_digest(token.encode(), self.token.encode()) for token in tokens)

    def _cookie(self) -> str:
        # Lax, not Strict: with Strict the cookie would be missing after the 303 when the link was on another site.
        # Cross-site requests are refused in `_refusal`.
        return f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Lax"


def _is_navigation(headers: dict[str, str]) -> bool:
    """Whether somebody follows a link to the page: allowed from any site."""
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


def _limited(receive: Receive, path: str) -> Receive:
    """Stop reading a body at its limit: a chunked body does not say its length."""
    count, limit = 0, _body_limit(path)

    async def read() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit:  # FastAPI turns every other exception into a 400
            raise HTTPException(413, f"the request has more than {limit:,} bytes, which is the limit")
        return message

    return read


def _with_headers(send: Send) -> Send:
    async def write(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in _encoded(HEADERS) if name not in present]
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return write


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


async def _respond(send: Send, status: int, error: str, more: dict[str, str] | None = None) -> None:
    body = json.dumps({"error": error}, ensure_ascii=False).encode() if error else b""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **HEADERS, **(more or {})}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})
