"""CPU kernels on several threads compute what they compute on one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from regard import Additive, attend, causal
from regard.attention.kernels import cpu_thread_pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def results(batch: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    energy = Additive(8, 8, 16)
    q = torch.randn(batch, 60, 8, requires_grad=True)
    z = attend(q, q, q, energy=energy, mask=causal(), backend="fused", dropout=0.2)
    return [z, *torch.autograd.grad(z.square().sum(), (q, *energy.parameters()))]


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_the_same_results_on_two_threads(two_threads: None, batch: int) -> None:
    several = results(batch)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    for x, y in zip(several, results(batch), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def test_in_inference_mode(two_threads: None) -> None:
    q = torch.randn(3, 60, 8)
    energy = Additive(8, 8, 16)
    with torch.inference_mode():
        z = attend(q, q, q, energy=energy, backend="fused")
    torch.testing.assert_close(z.clone(), attend(q, q, q, energy=energy, backend="reference"), rtol=1e-5, atol=1e-6)


def test_shares_run_on_threads_of_one_thread_each_and_errors_are_raised(two_threads: None) -> None:
    assert cpu_thread_pool.run(lambda share: (share, torch.get_num_threads()), [1, 2, 3]) == [(1, 1), (2, 1), (3, 1)]
    with pytest.raises(ZeroDivisionError):
        cpu_thread_pool.run(lambda share: 1 // share, [1, 0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_starts_threads_of_its_own(two_threads: None) -> None:
    cpu_thread_pool.run(abs, [1, 2])
    child = os.fork()
    if child == 0:
        os._exit(0 if cpu_thread_pool.run(abs, [-1, -2]) == [1, 2] else 1)
    assert os.waitpid(child, 0)[1] == 0
