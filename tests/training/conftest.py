"""A recipe that trains in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    from tests.support.tiny_training import recipe_file

    return recipe_file(tmp_path)
