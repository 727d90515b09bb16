"""Fixtures of the kernels' tests: a GPU, or Triton's interpreter on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.triton_interpreter import interpreted

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def interpreted_kernels() -> Iterator[None]:
    with interpreted():
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU: the kernels are compiled for it and not interpreted")
    return request.param
