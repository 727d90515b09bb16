"""Requests to the HTTP API without a network: the notebook widget and the single file use the same API as the page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message

ARRAY_METADATA = ("shape", "type", "peaks", "computed", "note")
"""The headers of an array, without their `x-`."""


@dataclass(slots=True)
class ClientResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def array(self) -> dict[str, Any] | None:
        """Shape, type and the other metadata of an array; None where the body is not an array."""
        if "x-shape" not in self.headers:
            return None
        metadata: dict[str, Any] = {x: self.headers[f"x-{x}"] for x in ARRAY_METADATA if f"x-{x}" in self.headers}
        metadata["shape"] = [int(x) for x in metadata["shape"].split(",")]
        metadata["peaks"] = [float(x) for x in metadata.get("peaks", "").split(",") if x]
        metadata["computed"] = float(metadata.get("computed", 1))
        return metadata


async def request(
    app: FastAPI,
    method: str,
    url: str,
    body: bytes = b"",
    content_type: str = "application/json",
    disconnected: asyncio.Event | None = None,
) -> ClientResponse:
    """Send one request; setting `disconnected` cancels it."""
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
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    start: dict[str, Any] = {}
    chunks: list[bytes] = []

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await (disconnected or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return ClientResponse(start["status"], headers, b"".join(chunks))
