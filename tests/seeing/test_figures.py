"""Call.plot: the numbers, names and scale of the figure are those of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard import watch
from regard.seeing import figures
from regard.seeing.figures import MAX_WORDS, largest_cell, overlay, save_caption_figure

if TYPE_CHECKING:
    from pathlib import Path

    from regard.seeing import Seen

pytest.importorskip("matplotlib")


class Kernel(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def recorded(queries: int = 3, keys: int = 4) -> Seen:
    model, generator = Kernel(), torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=generator).requires_grad_() for n in (queries, keys, keys))
    with watch(model, gradients=True) as seen:
        model(q, k, v).square().sum().backward()
    return seen


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.images]


def image(axes: Any) -> Any:
    return np.asarray(axes.images[0].get_array())


def test_all_heads_of_an_entry_with_their_tokens_on_one_scale() -> None:
    call = recorded()[0]
    figure = call.plot(entry=1, tokens=(["a", "$b", "c"], ["e", "f", "g", "h"]), cmap="magma", labels=("to", "from"))
    shown = panels(figure)
    for head, axes in enumerate(shown):
        assert axes.get_title() == f"head {head}"
        np.testing.assert_array_equal(image(axes), call.weights.dense()[1, head].numpy())
        assert [x.get_text() for x in axes.get_yticklabels()] == ["a", r"\$b", "c"]
        assert [x.get_text() for x in axes.get_xticklabels()] == ["e", "f", "g", "h"]
        assert axes.images[0].get_clim() == (0, pytest.approx(float(call.weights.dense()[1].max())))
        assert axes.images[0].cmap.name == "magma"
    assert len(shown) == 3
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("to", "from")


def test_contributions_have_signed_colours() -> None:
    call = recorded()[0]
    c = call.contributions()
    (axes,) = panels(call.plot(2, contributions=c))
    np.testing.assert_array_equal(image(axes), c.dense()[0, 2].numpy())
    low, high = axes.images[0].get_clim()
    assert low == -high == pytest.approx(-float(c.dense()[0, 2].abs().max()))
    with pytest.raises(ValueError, match="are not those of Kernel"):
        call.plot(contributions=recorded(5)[0].contributions())


def test_a_long_matrix_is_pooled_and_has_positions_in_place_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "CELLS", 8)
    monkeypatch.setattr(figures, "NAMES", 8)
    call = recorded(20, 30)[0]
    (axes,) = panels(call.plot(1, tokens=([str(n) for n in range(20)], [str(n) for n in range(30)])))
    np.testing.assert_allclose(image(axes), call.weights[0, 1].map((8, 8)).numpy())
    assert axes.images[0].get_extent() == [-0.5, 29.5, 19.5, -0.5]
    assert len(axes.get_xticks()) < 20


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_the_figure_is_written(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"heads.{suffix}"
    recorded()[0].plot([0, 2], file=file)
    assert file.stat().st_size > 1000


def test_what_cannot_be_drawn_is_said_before_anything_is_computed(tmp_path: Path) -> None:
    call = recorded()[0]
    with pytest.raises(ValueError, match=r"figure is written as \.png, \.svg or \.pdf"):
        call.plot(file=tmp_path / "heads.jpg")
    with pytest.raises(ValueError, match=r"there are 4 positions along the side 'key' and 3 tokens"):
        call.plot(tokens=["a", "b", "c"])
    with pytest.raises(IndexError):
        call.plot(3)


def test_no_head_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no head to draw"):
        recorded()[0].plot([])


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
    save_caption_figure(
        tmp_path / "a.svg",
        np.full((8, 8, 3), 255, np.uint8),
        torch.rand(len(words), 2, 2),
        words,
    )
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert drawn.count("<image") == MAX_WORDS + 1
    assert drawn.count("#999999") == 4 * (MAX_WORDS + 1)
    assert f"<!-- w{MAX_WORDS - 1} -->" in drawn
    assert f"<!-- w{MAX_WORDS} -->" not in drawn
