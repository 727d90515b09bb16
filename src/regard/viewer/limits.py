"""Limits of one request and of the caches, and the errors that refuse a request with a reason."""

from __future__ import annotations

TEXT = 20_000
"""Characters of an input text."""
BODY = 1 << 17
"""Bytes of a JSON request."""
UPLOAD = 16 << 20
"""Bytes of an uploaded picture or sound."""
DRAIN = 64 << 20
"""Bytes of a refused body that are read and forgotten, so that the client gets the answer …"""
DRAIN_SECONDS = 10.0
"""… for so long at most …"""
DRAINS = 16
"""… of so many requests at a time."""
STRANGER_DRAIN = 1 << 20
"""The same for a client without the token."""
STRANGER_DRAIN_SECONDS = 2.0
STRANGER_DRAINS = 8
CELLS = 1 << 22
"""Numbers in one response."""
SIDE = 512
"""Cells along one side of a tile."""
GENERATED = 256
"""New tokens of a language model."""
BEAMS = 16
MODELS = 4
"""Models of one request, compared side by side."""
TRACES = 16
"""Traces of texts read through the page; the oldest is removed first. Pinned traces are not counted."""
WAITING = 512
"""Jobs in a worker's queue."""
PLACES = 1 << 20
"""Queries, or keys, of a call."""
MATRICES = 1 << 16
"""Batch entries × heads of one call."""
VECTORS = 1 << 33
"""Bytes of one call's queries, or keys, over all heads."""
EXPLAINED = 1024
"""Tokens of a text whose contributions are computed: a backward pass keeps what every layer computed."""
RUNS = 1 << 30
"""Bytes of the cache of runs with a backward pass."""
MEMORY = 512 << 20
"""Bytes of the pyramid cache; the cache of encoded arrays has a quarter of it."""


def public() -> dict[str, int]:
    """The limits that `GET /api/about` reports."""
    return {
        "text": TEXT,
        "upload": UPLOAD,
        "cells": CELLS,
        "side": SIDE,
        "generated": GENERATED,
        "beams": BEAMS,
        "models": MODELS,
        "explained": EXPLAINED,
    }


class RequestError(ValueError):
    """A request that cannot be answered: the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ClientDisconnected(Exception):
    """The client closed the connection before the response was ready."""
