"""The commands of `regard`, one file per verb. Slow imports happen inside the functions."""

from __future__ import annotations

from . import (  # noqa: F401  each registers its command
    align,
    break_it,
    cache,
    caption,
    classify,
    compare,
    demo,
    effects,
    evaluate,
    export,
    generate,
    idf,
    patterns,
    phrasebook,
    recipes,
    samples,
    scenes,
    score,
    see,
    serve,
    train,
    translate,
    view,
)
from .typer_app import app

__all__ = ["app"]
