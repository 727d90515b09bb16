"""Shared by all tests: one thread per test process (two run side by side), a fixed seed before each test."""

import os
from importlib.util import find_spec

import pytest
import torch

from tests.support.paths import SHARED
from tests.support.triton_interpreter import interpreted

os.environ.setdefault("REGARD_DATA", str(SHARED / "data"))  # the corpora that recipes name

if find_spec("triton") is not None:
    with interpreted():  # before anything else imports it: Triton decides then whether its functions are interpreted
        import triton  # noqa: F401


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
