"""The commands of `regard`, one thin file per verb. What is slow to import is imported inside them."""

from __future__ import annotations

from . import (
    caption,
    classify,
    compare,
    demo,
    evaluate,
    export,
    generate,
    patterns,
    phrasebook,
    recipes,
    scenes,
    see,
    train,
    translate,
    view,
)
from .typer_app import app

__all__ = [
    "app",
    "caption",
    "classify",
    "compare",
    "demo",
    "evaluate",
    "export",
    "generate",
    "patterns",
    "phrasebook",
    "recipes",
    "scenes",
    "see",
    "train",
    "translate",
    "view",
]
