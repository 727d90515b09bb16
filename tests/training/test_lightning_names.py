"""Lightning installed as `lightning` is imported as pytorch_lightning, as the same objects."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from regard.training.lightning_names import AliasFinder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_modules_of_an_alias_are_those_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "actual_package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "actual_package" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .part import Part\n")
    (package / "part.py").write_text("class Part: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = AliasFinder({"alias_package": "actual_package.inner"})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    try:
        part = importlib.import_module("alias_package.part")
        assert importlib.import_module("alias_package").Part is part.Part
        assert importlib.import_module("actual_package.inner.part") is part
        assert part.Part.__module__ == "actual_package.inner.part"
        assert importlib.util.find_spec("alias_package.missing") is None
    finally:
        for name in [name for name in sys.modules if name.startswith(("alias_package", "actual_package"))]:
            del sys.modules[name]
