"""The trace that the page opens with: MiniLM over one sentence. It ships, so no model need be installed or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...seeing import load_trace
from .trace_view import TraceView

FOLDER = Path(__file__).parent / "minilm_cat_trace"
"""Written by tools/first_trace.py."""
MODEL = "minilm"
TEXT = "The cat sat on the mat because it was tired and warm."
STATE: dict[str, Any] = {"call": "5", "pins": ["q8"], "mute": ["special"]}
"""What the page shows first: the word “it” in the layer whose heads look most at “cat”, without [CLS] and [SEP]."""


def first_trace() -> TraceView:
    made = {"model": MODEL, "text": TEXT, "second": None, "generate": 0}
    return TraceView.of(load_trace(FOLDER), f"MiniLM · {TEXT}", made=made, pinned=True)
