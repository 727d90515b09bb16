"""The end of a process that belongs to a process group of PyTorch."""

from __future__ import annotations

import atexit
from functools import cache


@cache
def leave_groups_at_exit() -> None:
    """Destroy the process groups that exist when the interpreter ends, while it still runs.

    A thread of gloo drops the tensors of a collective after the call has returned, and needs Python's lock for that. If
    the interpreter is being taken down by then, Python ends the thread in the middle of C++, and the process dies of
    SIGABRT (github.com/pytorch/pytorch/issues/190489).

    gloo's threads end with the last reference to their group. Of FSDP on a CPU, caches of DTensor keep one.
    """
    atexit.register(_leave_groups)


def _leave_groups() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
