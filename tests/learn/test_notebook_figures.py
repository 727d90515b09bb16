"""An animation draws nothing until it is saved or shown, and then every frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.learn import Animation, heat_map

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


def test_cells_labels_and_numbers() -> None:
    ax = heat_map(torch.tensor([[0.5, -1.0, float("-inf")]]), ["q"], ["a", "b", "c"], title="t", digits=1)
    assert [text.get_text() for text in ax.texts] == ["0.5", "−1.0", "−∞"]
    assert [x.get_text() for x in ax.get_xticklabels()] == ["a", "b", "c"]
    assert ax.get_title() == "t"
    assert not ax.images
    pyplot.close("all")


def test_a_large_matrix_is_one_image() -> None:
    ax = heat_map(torch.rand(40, 40))
    assert len(ax.images) == 1
    assert not ax.texts
    pyplot.close("all")
