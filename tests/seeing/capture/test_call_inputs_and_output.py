"""Evenly spaced positions."""

from __future__ import annotations

import torch

from regard.seeing.capture.call_inputs_and_output import evenly_spaced


def test_the_first_and_the_last_are_included() -> None:
    assert evenly_spaced(5, 64).tolist() == [0, 1, 2, 3, 4]
    sample = evenly_spaced(1000, 64).tolist()
    assert (len(sample), sample[0], sample[-1]) == (64, 0, 999)
    assert evenly_spaced(1, 64).tolist() == [0]


def test_the_default_device_does_not_matter() -> None:
    expected = evenly_spaced(100, 64).tolist()
    with torch.device("meta"):
        assert evenly_spaced(100, 64).tolist() == expected
