"""Ask: the HTTP API without a network, for the notebook and the single file, so that there is one API and not three."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message

KEPT = {"x-shape": "shape", "x-type": "type", "x-peaks": "peaks", "x-computed": "computed", "x-note": "note"}


@dataclass(slots=True)
class ClientResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def array(self) -> dict[str, Any] | None:
        """What stands beside the numbers, where the answer is an array."""
        if "x-shape" not in self.headers:
            return None
        told: dict[str, Any] = {KEPT[name]: value for name, value in self.headers.items() if name in KEPT}
        told["shape"] = [int(x) for x in told["shape"].split(",")]
        told["peaks"] = [float(x) for x in told.get("peaks", "").split(",") if x]
        told["computed"] = float(told.get("computed", 1))
        return told


async def ask(
    app: FastAPI,
    method: str,
    url: str,
    body: bytes = b"",
    kind: str = "application/json",
    gone: asyncio.Event | None = None,
) -> ClientResponse:
    """One request; once `gone` is set, nobody waits for the answer."""
    parts = urlsplit(url)
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "root_path": "",
        "query_string": parts.query.encode(),
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", kind.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    waiting = [{"type": "http.request", "body": body, "more_body": False}]
    start: dict[str, Any] = {}
    chunks: list[bytes] = []

    async def receive() -> Message:
        if waiting:
            return waiting.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return ClientResponse(start["status"], headers, b"".join(chunks))
