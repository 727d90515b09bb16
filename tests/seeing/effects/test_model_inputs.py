"""Rows of a batch in whatever a model takes and returns."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

from regard.seeing.effects.model_inputs import all_tensors, batch_rows, batch_size, first_tensor, repeated


def test_a_batch_is_repeated_and_its_rows_are_found_again() -> None:
    x = {"ids": torch.tensor([[1, 2], [3, 4]]), "flag": True, "parts": (torch.arange(2), [torch.zeros(3)])}
    twice = repeated(x, 2, 3)
    assert twice["ids"].tolist() == [[1, 2], [3, 4]] * 3
    assert twice["flag"] is True
    assert twice["parts"][1][0].shape == (3,)  # not of this batch size
    again = batch_rows(twice, 6, slice(2, 4))
    assert torch.equal(again["ids"], x["ids"])
    assert torch.equal(again["parts"][0], x["parts"][0])


def test_named_tuples_and_first_tensors() -> None:
    Pair = namedtuple("Pair", "a b")
    assert repeated(Pair(torch.zeros(1), None), 1, 2).a.shape == (2,)
    assert first_tensor((None, torch.ones(1))).item() == 1
    assert first_tensor("text") is None
    assert batch_size({"flag": True, "x": torch.zeros(4, 2)}) == 4
    with pytest.raises(ValueError, match="no tensor with a batch dimension"):
        batch_size({"flag": True})


def test_dataclasses_are_taken_apart() -> None:
    """regard's own models return dataclasses."""

    @dataclass
    class Output:
        features: torch.Tensor
        weights: torch.Tensor | None

    output = Output(torch.arange(4.0)[:, None], None)
    assert batch_rows(output, 4, slice(2, 3)).features.tolist() == [[2.0]]
    assert batch_rows(output, 4, slice(2, 3)).weights is None
    assert first_tensor(output) is output.features
    assert len(all_tensors({"x": output})) == 1
