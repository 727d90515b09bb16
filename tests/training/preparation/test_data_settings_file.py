"""Data is prepared again where its settings changed, and not where a later version of regard has more of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from regard.training.preparation import settings_changed, write_settings
from regard.training.recipe import recipe_loader

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, *settings: str) -> Any:
    return SimpleNamespace(data=folder, recipe=recipe_loader.load_recipe("bahdanau-phrasebook", list(settings)))


def test_a_key_that_is_new_has_its_default(tmp_path: Path) -> None:
    assert not settings_changed(run(tmp_path / "nowhere"))
    write_settings(run(tmp_path), tmp_path)
    assert not settings_changed(run(tmp_path))
    assert settings_changed(run(tmp_path, "data.train=7"))
    file = tmp_path / "settings.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    del values["data"]["invented"]  # as written before there were invented names
    file.write_text(json.dumps(values), encoding="utf-8")
    assert not settings_changed(run(tmp_path))
    assert settings_changed(run(tmp_path, "data.invented=true"))
