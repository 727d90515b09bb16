"""The commands of `regard`, a file per topic. Slow imports happen inside the functions."""

from __future__ import annotations

from . import data_and_demo, run_models, see, train, translate  # noqa: F401  each registers its commands
from .options import app

__all__ = ["app"]
