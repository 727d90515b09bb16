"""What tests of one process share: every test starts from the same state.

pytest-xdist decides which tests a process runs and in which order. A test that depends on those before it fails on some
machines only.
"""

from __future__ import annotations

import random
import sys

import numpy
import torch


def reset_process_state() -> None:
    """One thread, PyTorch's own settings, fixed seeds, and nothing compiled.

    Dynamo keeps what it compiled for the whole process. FlexAttention called eagerly compiles one wrapper, whatever its
    arguments. If a call passes one tensor as query and key after a call whose functions hold tensors, PyTorch 2.13
    evaluates the old call's sources on the new call, and fails.
    """
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)  # noqa: NPY002 (libraries draw from the global generator)
    if "torch._dynamo" in sys.modules:  # importing it takes a second, resetting it less than a millisecond
        torch._dynamo.reset()
