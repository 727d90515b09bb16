"""Responses: arrays as little-endian bytes with their shape in headers, and JSON."""

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

    from ..data.tile import Pool, Tile
    from ..data.tile_pyramid import TilePyramid

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
            data, encoding = _compress(data, request)
            headers |= encoding
        return Response(data, 200 if complete else 202, headers, "application/octet-stream")


def json_response(value: Any, request: Request, status: int = 200) -> Response:
    try:
        data = _json(value)
    except ValueError:  # NaN or infinity, which JSON does not have
        data = _json(_finite(value))
    data, headers = _compress(data, request)
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


def _compress(data: bytes, request: Request, level: int = 1) -> tuple[bytes, dict[str, str]]:
    if len(data) < SMALL or "gzip" not in request.headers.get("accept-encoding", ""):
        return data, {"Vary": "Accept-Encoding"}
    return gzip.compress(data, level), {"Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
