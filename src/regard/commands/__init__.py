"""The commands of `regard`, one thin file per verb. What is slow to import is imported inside them."""

from __future__ import annotations

from . import compare, demo, evaluate, export, generate, patterns, phrasebook, recipes, see, train, translate
from .app import app

__all__ = [
    "app",
    "compare",
    "demo",
    "evaluate",
    "export",
    "generate",
    "patterns",
    "phrasebook",
    "recipes",
    "see",
    "train",
    "translate",
]
