"""Recipes, fitting, evaluating, results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .fitting import fit
    from .recipe import Recipe
    from .run_folder import Run

__all__ = ["Recipe", "Run", "fit"]


_HOME = {"Recipe": "recipe", "Run": "run_folder", "fit": "fitting"}


def __getattr__(name: str) -> object:
    # Each needs its own libraries, and scoring a file should not wait for the one that trains.
    if name not in _HOME:
        raise AttributeError(f"module 'regard.training' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
