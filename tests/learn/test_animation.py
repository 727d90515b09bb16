"""An animation draws nothing until it is saved or shown, and then every frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.learn import Animation

if TYPE_CHECKING:
    from pathlib import Path

pyplot = pytest.importorskip("matplotlib.pyplot")


def test_frames_are_drawn_when_it_is_saved(tmp_path: Path) -> None:
    figure, ax = pyplot.subplots(figsize=(1, 1))
    drawn: list[int] = []

    def draw(frame: int) -> None:
        drawn.append(frame)
        ax.plot([0, frame])

    animation = Animation(figure, draw, 3)
    assert not drawn
    assert not pyplot.get_fignums()
    animation.save(tmp_path / "film.webp")
    assert (tmp_path / "film.webp").read_bytes()[8:12] == b"WEBP"
    assert set(drawn) == {0, 1, 2}
    assert "<img" in animation._repr_html_()
