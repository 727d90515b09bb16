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

# A machine with a GPU may have PyTorch and little else: what needs an extra that is not installed is not collected.
collect_ignore = []
if find_spec("fastapi") is None:
    collect_ignore += ["viewer", "browser"]
if find_spec("pydantic") is None or find_spec("pytorch_lightning") is None:
    collect_ignore += ["training/recipe", "training/score", "training/tasks"]
    collect_ignore += [f"training/trainer/test_{name}.py" for name in ("ddp", "fit", "resume")]


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
