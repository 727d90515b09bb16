"""The heat map: labels, numbers where they fit, one image for large matrices."""

import pytest
import torch

from regard.learn import heat_map

pyplot = pytest.importorskip("matplotlib.pyplot")


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
