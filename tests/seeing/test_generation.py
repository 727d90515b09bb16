"""Evenly spaced positions."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.generation import Generation, Record, dot_energies, evenly_spaced, with_some_rows


def test_the_first_and_the_last_are_included() -> None:
    assert evenly_spaced(5, 64).tolist() == [0, 1, 2, 3, 4]
    sample = evenly_spaced(1000, 64).tolist()
    assert (len(sample), sample[0], sample[-1]) == (64, 0, 999)
    assert evenly_spaced(1, 64).tolist() == [0]


def test_the_default_device_does_not_matter() -> None:
    expected = evenly_spaced(100, 64).tolist()
    with torch.device("meta"):
        assert evenly_spaced(100, 64).tolist() == expected


def record(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Record:
    out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    return with_some_rows(Record(dot_energies(q, k), v, out, "test"))


def test_trusted_steps_are_joined_like_compared_ones() -> None:
    q, k, v = torch.randn(3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0)).unbind()
    made = {}
    for trusted in (False, True):
        generation = Generation(record(q[..., :4, :], k[..., :4, :], v[..., :4, :]))
        for n in (5, 6, 7):
            step = record(q[..., n - 1 : n, :], k[..., :n, :].clone(), v[..., :n, :].clone())
            assert generation.append(step, torch.Tensor.detach, trusted)
        energies, _ = generation.joined()
        made[trusted] = energies.a, energies.b, generation.v, energies.mask.dense((), 7, 7, q.device)  # type: ignore[union-attr]
    for plain, trusted_ in zip(made[False], made[True], strict=True):
        assert torch.equal(plain, trusted_)
    assert torch.equal(made[True][1], k)


def test_trusted_steps_with_other_keys_are_noticed_when_somebody_asks() -> None:
    q, k, v = torch.randn(3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0)).unbind()
    generation = Generation(record(q[..., :4, :], k[..., :4, :], v[..., :4, :]))
    other = k + 1
    assert generation.append(record(q[..., 4:5, :], other[..., :5, :], v[..., :5, :]), torch.Tensor.detach, True)
    with pytest.raises(RuntimeError, match="reordered"):
        generation.joined()
    assert not generation.append(record(q[..., 5:6, :], other[..., :6, :], v[..., :6, :]), torch.Tensor.detach)
