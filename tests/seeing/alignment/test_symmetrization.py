"""Links of two directions joined."""

from __future__ import annotations

import pytest

from regard.seeing.alignment.symmetrization import symmetrize


def test_links_of_both_directions_are_joined() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 1), (5, 5)}, {(0, 0), (1, 1), (3, 3)}
    assert symmetrize(forward, backward, "intersection") == {(0, 0), (1, 1)}
    assert symmetrize(forward, backward, "union") == forward | backward
    # (2, 1) is beside (1, 1) and gives word 2 its first link; (3, 3) and (5, 5) touch nothing.
    assert symmetrize(forward, backward) == {(0, 0), (1, 1), (2, 1)}
    with pytest.raises(ValueError, match="grow-diag"):
        symmetrize(forward, backward, "both")  # type: ignore[arg-type]
