"""Signals that ask a training run to end: it finishes the update, saves, and stops."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
"""Ctrl-C; the end of a job; and what Slurm sends before pre-emption (`#SBATCH --signal=USR1@120`). Windows has two."""


def ignore_signals(worker: int = 0) -> None:
    """For a process that ends by itself: one whose work is done, or a worker of a DataLoader (`worker_init_fn`).

    A signal to the whole process group must not end the workers: the main process needs them to finish the update.
    They end with it: PyTorch's workers check that it is there.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def first_signal(counts: list[float]) -> signal.Signals | None:
    """The signal that some process received, by the sums of `flags` over all of them: the same one for each process."""
    return next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)


class InterruptSignals:
    """`received` is the first signal that came while they were installed; a second one ends the process at once.

    After `training_ended` the first one does too if there is one process, and after `ignore` none. `restore` brings
    back the handlers from before this object was made, and so from before Lightning's.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in SIGNALS}
        # Lightning ignores Ctrl-C after the first one, also before `install`, and `restore` must end that.
        self._process = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        self._at_once = False

    def install(self) -> None:
        """Python runs handlers in the main thread only; in another thread nothing is installed."""
        if threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            for number in SIGNALS:
                signal.signal(number, self._receive)

    def flags(self) -> list[float]:
        """1 for the one of `SIGNALS` that was received, and 0 for the others."""
        return [float(number == self.received) for number in SIGNALS]

    def training_ended(self, processes: int) -> None:
        """From here on nothing is left to be finished: a signal ends the process, also one that came before.

        Of several processes, none ends before the others, which would wait for it: all do at `end_together`.
        """
        self._at_once = processes == 1
        if self._at_once and self.received is not None:
            raise SystemExit(128 + self.received)

    def end_together(self, device: torch.device) -> None:
        """Wait for all processes. Where one of them has received a signal, all end with the same exit status."""
        counts = torch.tensor(self.flags(), device=device)
        torch.distributed.all_reduce(counts)
        if (received := first_signal(counts.tolist())) is not None:
            raise SystemExit(128 + received)

    def ignore(self) -> None:
        """All is done, and the process ends by itself."""
        if self._process == os.getpid():
            ignore_signals()

    def restore(self) -> None:
        if self._process == os.getpid():
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # A forked process inherits the handler and has nothing to save.
        if self._at_once or self.received is not None or os.getpid() != self._process:
            raise SystemExit(128 + number)
        self.received = signal.Signals(number)
