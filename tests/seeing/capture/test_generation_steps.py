"""Steps of a generation that are joined before their keys are compared."""

from __future__ import annotations

import pytest
import torch

from regard.seeing.capture.call_inputs_and_output import Record, dot_energies, with_some_rows
from regard.seeing.capture.generation_steps import Generation


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
