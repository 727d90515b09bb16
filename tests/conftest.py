"""Shared by all tests: one thread per test process (two run side by side), a fixed seed before each test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
