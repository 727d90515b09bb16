"""Limits: how much one request may ask for. What is beyond them is refused with a reason, never cut silently."""

from __future__ import annotations

TEXT = 20_000
"""Characters of a text that is read or translated."""
BODY = 1 << 17
"""Bytes of a request's JSON."""
UPLOAD = 16 << 20
"""Bytes of a picture or a sound."""
CELLS = 1 << 22
"""Weights in one answer."""
SIDE = 512
"""Rows, and columns, of a tile."""
GENERATED = 256
"""Tokens that a language model may add."""
BEAMS = 16
MODELS = 4
"""Translators asked side by side."""
TRACES = 16
"""Traces kept of texts that were read here; the oldest go first. Those the server was started with stay."""
WAITING = 512
"""Requests that wait for their turn."""
PLACES = 1 << 20
"""Tokens of a trace."""
MATRICES = 1 << 16
"""Heads of all entries of a batch, of one call."""
VECTORS = 1 << 33
"""Bytes of one call's queries or keys, every head with its own."""
MEMORY = 512 << 20
"""Bytes of tiles and maps kept to be asked for again."""


def public() -> dict[str, int]:
    """What the page is told."""
    return {
        "text": TEXT,
        "upload": UPLOAD,
        "cells": CELLS,
        "side": SIDE,
        "generated": GENERATED,
        "beams": BEAMS,
        "models": MODELS,
    }
