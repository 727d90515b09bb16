"""Limits of one request and of the caches. A request beyond them is refused with a reason, never cut silently."""

from __future__ import annotations

TEXT = 20_000
"""Characters of an input text."""
BODY = 1 << 17
"""Bytes of a JSON request."""
UPLOAD = 16 << 20
"""Bytes of an uploaded picture or sound."""
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
    }
