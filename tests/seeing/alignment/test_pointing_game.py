"""The pointing game: hits are counted among the words that have a region."""

from __future__ import annotations

import pytest
import torch

from regard.data.corpora.scenes import Box
from regard.seeing.alignment.pointing_game import pointing_hits


def test_pointing_counts_words_that_are_somewhere() -> None:
    weights = torch.zeros(4, 6)  # 2 rows, 3 columns
    weights[0, 0] = weights[1, 5] = weights[2, 1] = weights[3, 4] = 1
    upper_left, lower_right = Box(0, 0, 0.3, 0.5), Box(0.7, 0.5, 1, 1)
    regions = [[upper_left], [upper_left, lower_right], [], [lower_right]]
    assert pointing_hits(weights, (2, 3), regions) == (2, 3)
    with pytest.raises(ValueError, match=r"weights are \[4, 6\], there are 4 words and 2 × 2 cells"):
        pointing_hits(weights, (2, 2), regions)
