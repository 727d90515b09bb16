"""Answers: arrays as the page takes them, little-endian bytes with their shape beside them, and errors as one line."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from fastapi import Response

if TYPE_CHECKING:
    from fastapi import Request
    from torch import Tensor

SMALL = 1024
"""Bytes below which nothing is gained by packing."""


class RequestError(ValueError):
    """A request that cannot be answered, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class ClientDisconnected(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True)
class EncodedArray:
    """Numbers on their way to the page.

    As "uint8" a weight w is round(255·√(w / peak)), with one peak for each leading index: small weights stay visible,
    and the page gets w back to within 1/255 of the square root.
    """

    data: bytes
    shape: tuple[int, ...]
    type: str
    peaks: list[float] = field(default_factory=list)
    computed: float = 1.0
    """How much of it is computed; the rest is zero yet."""
    note: str = ""
    """What the numbers are, where they are not all there is."""

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

    @property
    def headers(self) -> dict[str, str]:
        found = {"X-Shape": ",".join(map(str, self.shape)), "X-Type": self.type}
        if self.peaks:
            found["X-Peaks"] = ",".join(f"{peak:.6g}" for peak in self.peaks)
        if self.computed < 1:
            found["X-Computed"] = f"{self.computed:.4f}"
        if self.note:
            found["X-Note"] = self.note
        return found

    def response(self, request: Request) -> Response:
        """202 while a part of it is still to be computed: ask again, and the rest is computed meanwhile."""
        headers = self.headers
        done = self.computed >= 1
        headers["Cache-Control"] = "private, no-cache" if done else "no-store"
        if done:
            headers["ETag"] = f'"{hashlib.blake2b(self.data, digest_size=12).hexdigest()}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
        data = self.data
        if self.type == "uint8":
            data, packed = _packed(data, request)
            headers |= packed
        return Response(data, 200 if done else 202, headers, "application/octet-stream")


def json_response(value: Any, request: Request, status: int = 200) -> Response:
    try:
        data = _json(value)
    except ValueError:  # a model's numbers may be anything, JSON's may not
        data = _json(_finite(value))
    data, headers = _packed(data, request)
    return Response(data, status, {"Cache-Control": "no-store", **headers}, "application/json")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """The same with null for what is no finite number."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _packed(data: bytes, request: Request) -> tuple[bytes, dict[str, str]]:
    if len(data) < SMALL or "gzip" not in request.headers.get("accept-encoding", ""):
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, 1), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
