"""Threads for CPU kernels: each worker computes a share of its own, with operations of one thread.

PyTorch splits every operation over its threads and waits for all of them at its end. A kernel of many short operations
then waits whenever one thread is held up, as it is on a machine that other programs use too. Here a kernel is cut into
shares that do not depend on one another, and the threads meet once, when all shares are done.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Share = TypeVar("Share")
Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()


def run(work: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
    """`[work(share) for share in shares]`, on the threads PyTorch may use; a thread that is free takes the next."""
    threads = torch.get_num_threads()
    if min(threads, len(shares)) < 2:
        return [work(share) for share in shares]

    inference = torch.is_inference_mode_enabled()

    def alone(share: Share) -> Result:
        with torch.inference_mode(inference), torch.no_grad():  # settings of a thread, in this order
            return work(share)

    return list(_pool(threads).map(alone, shares))


def _pool(threads: int) -> ThreadPoolExecutor:
    with _lock:
        if threads not in _pools:
            ready = threading.Barrier(threads + 1)

            def start() -> None:
                torch.get_num_threads()  # a thread takes the global number once, when it is first asked
                torch.set_num_threads(1)  # of this thread, and of threads that start later: put back below
                ready.wait()

            pool = ThreadPoolExecutor(threads, "regard-cpu", initializer=start)
            for _ in range(threads):
                pool.submit(_nothing)
            ready.wait()
            torch.set_num_threads(threads)
            _pools[threads] = pool
        return _pools[threads]


def _nothing() -> None:
    """A task for each thread to start for."""


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
