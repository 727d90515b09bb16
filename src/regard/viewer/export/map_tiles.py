"""Map tiles of a single file: the tiles of every head of a long text."""

from __future__ import annotations

import base64
import gzip
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from ..data.tile import Pool, Tile
from ..data.tile_pyramid import TilePyramid
from ..http.responses import EncodedArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..data.trace_view import TraceView

SIDE = 256
"""Cells along a tile of the map (data/tiles.js)."""
LARGE = 240
"""Cells of the Model view's large map (views/model/model.js)."""


def map_tiles(trace: TraceView, size: int, progress: Callable[[float], None]) -> dict[str, dict[str, Any]]:
    """The compressed tiles of all calls of more than `size` tokens, by the URL that the page requests them with."""
    heads = [
        (entry, at, head)
        for entry, (at, call) in product(range(trace.batch), enumerate(trace.seen))
        for head in range(call.heads if max(call.shape[-2:]) > size else 0)
    ]
    tiles: dict[str, dict[str, Any]] = {}
    for at, place in enumerate(heads):
        tiles |= _head_tiles(trace, *place, size)
        progress((at + 1) / len(heads))
    return tiles


def array_entry(metadata: dict[str, Any], data: bytes) -> dict[str, Any]:
    """An array as the file holds it."""
    return {**metadata, "data": base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()}


def _head_tiles(trace: TraceView, entry: int, call: int, head: int, size: int) -> dict[str, dict[str, Any]]:
    pyramid = TilePyramid(trace.weights(call, entry)[head])
    tiles: dict[str, dict[str, Any]] = {}
    for tile, pool in product(_tiles(pyramid.queries, pyramid.keys, size), get_args(Pool)):
        for band in pyramid.missing_bands(tile):
            pyramid.pool_band(band)
        array = EncodedArray.of_tile(pyramid, tile, pool, "float16")
        # Sorted by name, as in the keys of the page (keyOf in data/sources.js).
        parameters = sorted({**asdict(tile), "entry": entry, "head": head, "pool": pool}.items())
        query = "&".join(f"{name}={value}" for name, value in parameters)
        tiles[f"/api/traces/{trace.id}/calls/{call}/tile?{query}"] = array_entry(array.metadata, array.data)
    return tiles


def _tiles(queries: int, keys: int, size: int) -> list[Tile]:
    """The map's tiles of every level that has at most `size` cells along a side, and the Model view's large map."""
    longest, level = max(queries, keys), 0
    while SIDE << level < longest:
        level += 1
    tiles = [Tile(0, 0, queries, keys, min(LARGE, queries), min(LARGE, keys))]
    while level >= 0 and -(-longest >> level) <= max(size, SIDE):
        reach = SIDE << level
        for top, left in product(range(0, queries, reach), range(0, keys, reach)):
            bottom, right = min(top + reach, queries), min(left + reach, keys)
            tiles.append(Tile(top, left, bottom, right, -(-(bottom - top) >> level), -(-(right - left) >> level)))
        level -= 1
    return tiles
