"""The processes that the first process of a run starts, and what is said when one of them ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from lightning_fabric.utilities.distributed import _set_num_threads_if_needed
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch import distributed

from ..trainer.interrupt_signals import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen

PERIOD = 0.5
"""Seconds between two looks at the processes."""
PATIENCE = 30.0
"""Seconds in which the first process ends by itself after another one did: the process group tells it, or a signal."""


def ending(code: int) -> str:
    """How a process ended, from its return code as `subprocess` has it: negative for a signal."""
    if code >= 0:
        return f"with status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


def exit_status(code: int) -> int:
    """The status of the whole run: 128 + the number of a signal that interrupts it, and 1 for every other end."""
    status = 128 - code if code < 0 else code
    return status if status - 128 in SIGNALS else 1


class ProcessLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher of one process for each device, with an observer that says why a run ends.

    Lightning's own observer kills the first process without a message. `continuation` is what continues the run.
    """

    def __init__(self, strategy: Any, continuation: str) -> None:
        super().__init__(strategy.cluster_environment, strategy.num_processes, strategy.num_nodes)
        self.continuation = continuation

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            ProcessObserver(self.procs, self.num_processes * self.num_nodes, self.continuation).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def first_ended(self, seconds: float) -> str | None:
        """The process that ended other than by status 0, and how; None if none does within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            if (found := failure(self.procs)) is not None:
                return f"process {found[0]} of {self.num_processes * self.num_nodes} ended {ending(found[1])}"
            if not self.procs or time.monotonic() > deadline:
                return None
            time.sleep(PERIOD / 5)


class ProcessObserver(threading.Thread):
    """Ends the first process, with a message, if another one has ended and it has not noticed.

    That is so while processes start, when the first one waits for the others to join; and in a collective of a backend
    that does not notice. It has `PATIENCE` seconds to end by itself once the process group exists.
    """

    def __init__(self, processes: list[Popen[bytes]], world: int, continuation: str) -> None:
        super().__init__(daemon=True, name="process-observer")
        self.processes, self.world, self.continuation = processes, world, continuation

    def run(self) -> None:
        while (found := failure(self.processes)) is None:
            if all(process.returncode == 0 for process in self.processes):
                return
            time.sleep(PERIOD)
        rank, code = found
        joined = distributed.is_initialized()
        if joined:
            time.sleep(PATIENCE)
        when = "while the processes worked together" if joined else "before all processes had started"
        print(
            f"regard: process {rank} of {self.world} (counted from 0) ended {ending(code)} {when}, so that the others "
            f"cannot continue. {_cause(code)} Continue with: {self.continuation}",
            file=sys.stderr,
            flush=True,
        )
        for process in self.processes:
            process.kill()
        os._exit(exit_status(code))  # the main thread is waiting in C++ and runs no handler


def failure(processes: list[Popen[bytes]]) -> tuple[int, int] | None:
    """The rank and the return code of a process that ended other than with status 0."""
    codes = [process.poll() for process in processes]
    return next(((rank, code) for rank, code in enumerate(codes, 1) if code), None)


def _cause(code: int) -> str:
    if code == -signal.SIGKILL:
        return "A process is killed this way by somebody, or by the system when memory runs out."
    return "Its own message, above, says why." if code > 0 else ""


class DataParallelStrategy(DDPStrategy):
    """Lightning's DDP, with our launcher."""

    def __init__(self, continuation: str) -> None:
        super().__init__()
        self.continuation = continuation

    def _configure_launcher(self) -> None:
        self._launcher = ProcessLauncher(self, self.continuation)
