"""What the server answers: the files of the page, JSON, arrays; and a client in the same process."""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fastapi import Response
from pydantic import BaseModel
from starlette.datastructures import Headers

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message
    from torch import Tensor

STATIC = Path(__file__).parent / "static"
SCRIPT, STYLES = "bundle/page.js", "bundle/page.css"


def script() -> str:
    """All modules as one: the page of a server, a single file or the site, and the widget (shell/entry.js)."""
    return (STATIC / SCRIPT).read_text(encoding="utf-8")


def styles() -> str:
    return (STATIC / STYLES).read_text(encoding="utf-8")


@cache
def view_names() -> list[str]:
    """The views in the order of their tabs, from the table of the page (views/index.js)."""
    table = (STATIC / "views" / "index.js").read_text(encoding="utf-8")
    listed = re.search(r"^export const views = \[([\w\s,]+)\];", table, re.MULTILINE)
    if listed is None:
        raise ValueError("views/index.js has no line `export const views = […];`")
    return [name for name in re.split(r"[\s,]+", listed[1]) if name]


class JSON(Response):
    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200) -> None:
        super().__init__(content, status, {"Cache-Control": "no-store"})

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # NaN or infinity, which JSON does not have
            text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
        return text.encode()


def _finite(value: Any) -> Any:
    """The same value with null for NaN and infinity."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rounded(x: Any, digits: int = 6) -> Any:
    """A tensor as lists of numbers of so many digits; None for NaN, infinity and None."""
    x, form = x.tolist() if isinstance(x, torch.Tensor) else x, f".{digits}g"

    def number(x: Any) -> Any:
        if isinstance(x, list):
            return [number(value) for value in x]
        return None if x is None or not math.isfinite(x) else float(format(x, form))

    return number(x)


class Array(Response):
    """A tensor as little-endian bytes, with what they mean in headers (docs/http_api.md).

    As "uint8" a weight w is round(255·√(w / peak)), with one peak for each leading index: small weights stay visible,
    and the square root of w / peak is exact to 1/255.

    Below 1, `computed` is the fraction that is computed: the rest is zero, and to be requested again. `note` says how
    the numbers were reduced, where they are not exactly what was requested.
    """

    media_type = "application/octet-stream"

    def __init__(self, x: Tensor, type: str = "float32", computed: float = 1.0, note: str = "") -> None:
        x, peaks = x.detach().cpu(), list[float]()
        if type == "uint8":
            lead = x if x.dim() > 2 else x[None]
            peak = lead.flatten(1).amax(1).float() if lead.numel() else torch.zeros(len(lead))
            scale = peak.clamp_min(1e-30).view(-1, *[1] * (lead.dim() - 1))
            numbers = (lead.float() / scale).clamp(0, 1).sqrt_().mul_(255).round_().to(torch.uint8).numpy()
            peaks = peak.tolist()
        else:
            kind = {"float32": torch.float32, "float16": torch.float16}[type]
            numbers = x.to(kind).contiguous().numpy()
            numbers = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
        headers = {"X-Shape": ",".join(map(str, x.shape)), "X-Type": type, "Cache-Control": "no-store"}
        headers |= {"X-Peaks": ",".join(f"{peak:.6g}" for peak in peaks)} if peaks else {}
        headers |= {"X-Computed": f"{computed:.4f}"} if computed < 1 else {}
        headers |= {"X-Note": note} if note else {}
        super().__init__(numbers.tobytes(), 200 if computed >= 1 else 202, headers)


class ErrorBody(BaseModel):
    """What is wrong, what was expected, what to do."""

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody, "description": words}
    for code, words in (
        (401, "The token is missing or wrong"),
        (403, "The request comes from a page of another site"),
        (404, "Not found"),
        (413, "The request is too large, or more than one response can hold"),
        (421, "The server is not called by the name in the header Host"),
        (422, "A body that is not JSON, an unknown key, or an invalid value"),
        (500, "The computation failed; the traceback is in the server's log"),
        (503, "Too many requests are waiting, or the answer took too long"),
    )
}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
ARRAY: dict[int | str, dict[str, Any]] = {200: {"description": "The numbers", "content": BYTES}}
PART = "A part is not computed yet (X-Computed: the fraction that is); request it again for the rest"
TILE: dict[int | str, dict[str, Any]] = {**ARRAY, 202: {"description": PART, "content": BYTES}}


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
    app: FastAPI, method: str, url: str, body: bytes = b"", content_type: str = "application/json"
) -> ClientResponse:
    """Send one request; a client that leaves cancels the task."""
    path, _, query = url.partition("?")
    headers = {"host": "localhost", "content-type": content_type, "content-length": str(len(body))}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": Headers(headers).raw,
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    start: dict[str, Any] = {}
    chunks: list[bytes] = []

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        start.update(message if message["type"] == "http.response.start" else {})
        chunks.append(message.get("body", b""))

    await app(scope, receive, send)
    return ClientResponse(start["status"], dict(Headers(raw=start["headers"])), b"".join(chunks))
