"""Caption figures: the overlay follows the weights, and long captions end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from regard.seeing.drawing.picture_overlay import MAX_WORDS, largest_cell, overlay, save_caption_figure

if TYPE_CHECKING:
    from pathlib import Path

np = pytest.importorskip("numpy", reason="needs numpy")
pytest.importorskip("matplotlib", reason="needs matplotlib")


@pytest.mark.parametrize("ground", [0, 30, 255])
def test_a_picture_is_veiled_where_nobody_looked(ground: int) -> None:
    """On a dark picture as on a light one, what was looked at can be told from what was not."""
    picture, soft = np.full((64, 64, 3), ground, np.uint8), torch.full((4, 4), 0.01)
    soft[1, 2] = 0.85
    shown = overlay(picture, soft).astype(int)
    assert shown.shape == (64, 64, 3)
    assert abs(shown[24, 40] - ground).max() <= 2  # the middle of the cell
    assert abs(shown[60, 4] - ground).min() > 70
    assert len(np.unique(shown)) > 10  # and smoothly between them


def test_one_cell_is_drawn_as_the_square_it_is() -> None:
    hard = torch.zeros(4, 4)
    hard[1, 2] = 1
    shown = overlay(np.full((64, 64, 3), 255, np.uint8), hard)
    assert (shown[16:32, 32:48] == 255).all()
    assert (shown == 255).sum() == 16 * 16 * 3
    assert largest_cell(hard, 64) == (32, 16, 16, 16)


def test_every_panel_has_a_frame_and_long_captions_an_end(tmp_path: Path) -> None:
    words = [f"w{n}" for n in range(MAX_WORDS + 17)]
    save_caption_figure(tmp_path / "a.svg", np.full((8, 8, 3), 255, np.uint8), torch.rand(len(words), 2, 2), words)
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn.count("<image") == MAX_WORDS + 1
    assert drawn.count("#999999") == 4 * (MAX_WORDS + 1)
    assert f"<!-- w{MAX_WORDS - 1} -->" in drawn
    assert f"<!-- w{MAX_WORDS} -->" not in drawn
