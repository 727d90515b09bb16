"""Signals that ask a training run to end: it finishes the update, saves, and stops."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Ctrl-C; the end of a job; and what Slurm sends before pre-emption (`#SBATCH --signal=USR1@120`). Windows has two."""


def ignore_signals(worker: int) -> None:
    """`worker_init_fn` of a DataLoader: a signal to the whole process group must not end its workers.

    The main process needs them to finish the update. They end with it: PyTorch's workers check that it is there.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class InterruptSignals:
    """`received` is the first signal that came while they were installed; a second one ends the process at once.

    `restore` brings back the handlers from before this object was made, and so from before Lightning's.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
        self._process = 0

    def install(self) -> None:
        """Python runs handlers in the main thread only; in another thread nothing is installed."""
        if threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            for number in SIGNALS:
                signal.signal(number, self._receive)

    def restore(self) -> None:
        if self._process == os.getpid():
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A forked process inherits the handler and has nothing to save.
        if self.received is not None or os.getpid() != self._process:
            raise SystemExit(128 + number)
        self.received = signal.Signals(number)
