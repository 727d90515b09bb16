"""Folders the tests read: this repository, and the data beside it, which users do not have."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
