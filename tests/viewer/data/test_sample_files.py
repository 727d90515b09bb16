"""The samples of the page."""

from __future__ import annotations

from regard.viewer.data.sample_files import PICTURE, SOUND, sample_files


def test_pictures_and_sounds_ship() -> None:
    assert {len(sample_files(suffix)) >= 3 for suffix in (PICTURE, SOUND)} == {True}
