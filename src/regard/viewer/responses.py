"""Static files of the page, and the bundle that tools/viewer_javascript.py makes of them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import torch
from fastapi import Path as PathParameter
from fastapi import Query, Request, Response
from pydantic import BaseModel

from . import guard
from .guard import RequestError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Message
    from torch import Tensor

    from .jobs import Jobs
    from .tiles import Pool, Tile, TilePyramid
    from .traces import TraceView

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".map": "application/json",
}
SCRIPT, STYLES = "bundle/page.js", "bundle/page.css"


def files() -> dict[str, Path]:
    """The page's files by name. A request names one of these; the name is never used as a path."""
    return {
        path.relative_to(STATIC).as_posix(): path
        for path in sorted(STATIC.rglob("*"))
        if path.is_file() and path.suffix in MEDIA_TYPES
    }


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


SMALL = 1024
"""Bytes below which compression does not pay."""


@dataclass(slots=True)
class EncodedArray:
    """A tensor as bytes, with the metadata that goes into headers.

    As "uint8" a weight w is round(255·√(w / peak)), with one peak for each leading index: small weights stay visible,
    and the square root of w / peak is exact to 1/255.
    """

    data: bytes
    shape: tuple[int, ...]
    type: str
    peaks: list[float] = field(default_factory=list)
    computed: float = 1.0
    """The fraction that is computed; the rest is zero so far."""
    note: str = ""
    """How the numbers were reduced, where they are not exactly what was requested."""

    @classmethod
    def of(cls, x: Tensor, type: str = "float32", computed: float = 1.0, note: str = "") -> EncodedArray:
        x = x.detach().cpu()
        if type == "uint8":
            lead = x if x.dim() > 2 else x[None]
            peaks = lead.flatten(1).amax(1).float() if lead.numel() else torch.zeros(len(lead))
            scale = peaks.clamp_min(1e-30).view(-1, *[1] * (lead.dim() - 1))
            packed = (lead.float() / scale).clamp(0, 1).sqrt_().mul_(255).round_().to(torch.uint8)
            return cls(packed.numpy().tobytes(), tuple(x.shape), type, peaks.tolist(), computed, note)
        kind = {"float32": torch.float32, "float16": torch.float16}[type]
        numbers = x.to(kind).contiguous().numpy()
        data = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()
        return cls(data, tuple(x.shape), type, [], computed, note)

    @classmethod
    def of_tile(cls, pyramid: TilePyramid, tile: Tile, pool: Pool, type: str, computed: float = 1.0) -> EncodedArray:
        """A tile of one head; `note` says where its cells are not those that were requested."""
        note = "" if pyramid.edges(tile) == tile.edges else f"cells moved to multiples of {pyramid.block}"
        return cls.of(pyramid.tile(tile, pool), type, computed, note)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the headers say of a complete array, as values."""
        note = {"note": self.note} if self.note else {}
        return {"shape": list(self.shape), "type": self.type, "peaks": self.peaks, **note}

    @property
    def headers(self) -> dict[str, str]:
        headers = {"X-Shape": ",".join(map(str, self.shape)), "X-Type": self.type}
        if self.peaks:
            headers["X-Peaks"] = ",".join(f"{peak:.6g}" for peak in self.peaks)
        if self.computed < 1:
            headers["X-Computed"] = f"{self.computed:.4f}"
        if self.note:
            headers["X-Note"] = self.note
        return headers

    def response(self, request: Request) -> Response:
        """200, 304 for a matching ETag, or 202 while a part is not computed yet: request it again for the rest."""
        headers = self.headers
        complete = self.computed >= 1
        headers["Cache-Control"] = "private, no-cache" if complete else "no-store"
        if complete:
            headers["ETag"] = f'"{hashlib.blake2b(self.data, digest_size=12).hexdigest()}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
        data = self.data
        if self.type == "uint8":
            data, encoding = compress(data, request)
            headers |= encoding
        return Response(data, 200 if complete else 202, headers, "application/octet-stream")


def json_response(value: Any, request: Request, status: int = 200) -> Response:
    try:
        data = _json(value)
    except ValueError:  # NaN or infinity, which JSON does not have
        data = _json(_finite(value))
    data, headers = compress(data, request)
    return Response(data, status, {"Cache-Control": "no-store", **headers}, "application/json")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """The same value with null for NaN and infinity."""
    if isinstance(value, dict):
        return {key: _finite(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compress(data: bytes, request: Request, level: int = 1) -> tuple[bytes, dict[str, str]]:
    if len(data) < SMALL or "gzip" not in request.headers.get("accept-encoding", ""):
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, level), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}


TraceId = Annotated[str, PathParameter(pattern="^[0-9a-f]{1,40}$", description="A trace's id, from /api/traces")]
CallId = Annotated[int, PathParameter(ge=0, le=100_000, description="Index of the call in the trace")]
Entry = Annotated[int, Query(ge=0, le=1 << 20, description="Index in the batch")]
Head = Annotated[int, Query(ge=0, le=1 << 16)]
Heads = Annotated[
    str | None, Query(pattern="^[0-9]{1,5}(,[0-9]{1,5}){0,511}$", description="Heads, such as 0,3,5; default: all")
]
Span = Annotated[str | None, Query(pattern="^[0-9]{0,8}:[0-9]{0,8}$", description="A slice, such as 0:64")]
Pooling = Annotated[Literal["max", "mean"], Query(description="How the weights of a cell are pooled")]
Numbers = Annotated[Literal["float32", "float16", "uint8"], Query(alias="type")]


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
HEADERS = {
    "X-Shape": {"description": "The shape, such as 12,512,512", "schema": {"type": "string"}},
    "X-Type": {"description": "float32, float16 or uint8, little-endian", "schema": {"type": "string"}},
    "X-Peaks": {
        "description": "For uint8: w = peak · (x / 255)², one peak for each matrix",
        "schema": {"type": "string"},
    },
}
BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
ARRAY: dict[int | str, dict[str, Any]] = {
    200: {"description": "The numbers", "content": BYTES, "headers": HEADERS},
    304: {"description": "Unchanged"},
    **ERRORS,
}


def jobs_of(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def session_of(request: Request) -> str:
    """The session of the browser; empty for programs, which have no cookies."""
    return str(request.scope.get("state", {}).get("session", ""))


def call_of(request: Request, trace: str, call: int, entry: int) -> tuple[Jobs, TraceView, tuple[int, int, int]]:
    """The jobs, the trace and the shape of one of its calls; a 404 where there is none."""
    jobs = jobs_of(request)
    view = jobs.library.trace(trace)
    return jobs, view, call_shape(view, call, entry)


def call_shape(trace: TraceView, call: int, entry: int) -> tuple[int, int, int]:
    """(heads, queries, keys) of a call; a 404 where the trace has no such call or batch entry."""
    if call >= len(trace.seen.calls):
        raise RequestError(404, f"there is no call {call}; the trace has {len(trace.seen.calls)}, counted from 0")
    shape = trace.seen.calls[call].shape
    if len(shape) < 3:
        shape = (1, *shape)
    check_entry(entry, shape[-4] if len(shape) > 3 else 1)
    return shape[-3], shape[-2], shape[-1]


def check_entry(entry: int, batch: int) -> None:
    if entry >= batch:
        raise RequestError(404, f"there is no entry {entry}; the batch has {batch}, counted from 0")


def heads_of(text: str | None, count: int) -> list[int]:
    if text is None:
        return list(range(count))
    heads = [int(x) for x in text.split(",")]
    for head in heads:
        check_head(head, count)
    return heads


def check_head(head: int, count: int) -> None:
    if head >= count:
        raise RequestError(404, f"there is no head {head}; the call has {count}, counted from 0")


def span_of(text: str | None, count: int, name: str) -> range:
    """The range of a slice "a:b"; either side may be empty."""
    if text is None:
        return range(count)
    start, stop = text.split(":")
    span = range(int(start or 0), min(int(stop or count), count))
    if not span:
        raise RequestError(422, f"{name} {text} is an empty range; there are {count}, counted from 0")
    return span


def check_cells(*sizes: int) -> None:
    cells = math.prod(sizes)
    if cells > guard.CELLS:
        shape = " × ".join(f"{size:,}" for size in sizes)
        raise RequestError(
            413, f"{shape} are {cells:,} numbers; one response holds at most {guard.CELLS:,}: request fewer"
        )


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
