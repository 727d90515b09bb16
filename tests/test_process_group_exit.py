"""A process that ends with a process group of gloo ends without a crash."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import distributed

if not distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

# The thread of gloo that drops the tensor waits for Python's lock until the first function at exit has run.
CODE = """
import atexit, sys, torch
from torch import distributed
from regard.process_group_exit import leave_groups_at_exit

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
leave_groups_at_exit()
atexit.register(sum, range(20_000_000))
sys.setswitchinterval(60)
distributed.all_reduce(torch.ones(8), async_op=True)
"""


def test_a_thread_of_gloo_drops_its_tensor_before_the_interpreter_ends() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
