"""Guard: who may ask, and what a browser may do with the answers. Stands before every route.

A page on the internet can make a browser send requests to this machine. It cannot read the answers (no CORS headers
are ever sent), but it must not start work either: so the Host has to be ours (or a name that resolves to this machine
could be used to read, DNS rebinding), and a request that another site caused is refused.
"""

from __future__ import annotations

import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException

from . import limits

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
    """`hosts` are the names this server may be called by; with a `token` nobody is answered without it."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
        if self.token is not None and given and scope["path"] == "/":  # out of the address bar, into a cookie
            await _answer(send, 303, "", {"Location": _without_token(scope), "Set-Cookie": self._cookie()})
            return
        await self.app(scope, _bounded(receive, scope["path"]), _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts and name.lower() not in self.hosts:
            return (
                421,
                f"this server is not {host or 'without a name'}; open it by the address that regard view printed",
            )
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not _navigates(headers):
            return 403, "this request was caused by another site, and is not answered"
        origin = headers.get("origin")
        if origin is not None and origin.split("://", 1)[-1] != host:
            return 403, f"requests from {origin} are not answered; this is {host}"
        if self.token is not None and not self._known(scope, headers):
            return 401, "this server wants its token; open it by the whole address that regard view printed"
        size = headers.get("content-length", "0")
        most = _most(scope["path"])
        if not size.isdigit() or int(size) > most:
            return 413, f"the request has {size} bytes; at most {most:,} are taken"
        return None

    def _known(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            kept = None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[-1]
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        told = (kept.value if kept is not None else "", asked, bearer)
        return any(hmac.compare_digest(one.encode(), self.token.encode()) for one in told)

    def _cookie(self) -> str:
        # Lax, not Strict: a link to this server on another site would come back from the 303 without its cookie. What
        # other sites may cause is in `_refusal`.
        return f"{COOKIE}={self.token}; Path=/; HttpOnly; SameSite=Lax"


def _navigates(headers: dict[str, str]) -> bool:
    """Following a link to the page from anywhere is no attack."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _most(path: str) -> int:
    return limits.UPLOAD if path in ("/api/caption", "/api/listen") else limits.BODY


def _without_token(scope: Scope) -> str:
    rest = [(k, v) for k, several in parse_qs(scope["query_string"].decode("latin-1")).items() for v in several]
    query = urlencode([(k, v) for k, v in rest if k != "token"])
    return "/" + (f"?{query}" if query else "")


def _bounded(receive: Receive, path: str) -> Receive:
    """A body that goes on past its limit is refused there: a chunked one does not say how long it is."""
    count, most = 0, _most(path)

    async def read() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > most:  # this exception, since FastAPI makes a 400 of every other
            raise HTTPException(413, f"the request goes on past {most:,} bytes; at most so many are taken")
        return message

    return read


def _with_headers(send: Send) -> Send:
    async def write(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items() if k.lower().encode() not in there]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return write


async def _answer(send: Send, status: int, why: str, more: dict[str, str] | None = None) -> None:
    body = json.dumps({"error": why}, ensure_ascii=False).encode() if why else b""
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **HEADERS, **(more or {})}
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()]})
    await send({"type": "http.response.body", "body": body})
