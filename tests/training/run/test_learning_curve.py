"""Points of metrics.csv."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from regard.training.run.learning_curve import learning_curve

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_without_a_finite_value_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("update,nll,valid_nll\n10,2.5,\n20,nan,\n20,,1.5\n", encoding="utf-8")
    assert learning_curve(file, "nll") == [(10, 2.5)]
    assert learning_curve(file, "valid_nll") == [(20, 1.5)]
    with pytest.raises(ValueError, match="has no column bleu"):
        learning_curve(file, "bleu")
