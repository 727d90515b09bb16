"""A process that fuzzes one target: runs its cases one after another, with a limit on the time of each, and counts."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from .targets import LONGEST_WAIT, run

LONGEST = 30
"""Seconds of processor time that one case may take."""
GROWTH = 64
"""Megabytes that a process may grow from the second third of its time to the last: the medians of `SAMPLES` samples.

In the first third it loads models and fills its caches. Which models are loaded at a time moves it by tens.
"""
SAMPLES = 30
FEWEST = 100
"""Cases of a process below which its memory says nothing yet."""


class Hang(BaseException):
    """A case took too long."""


@dataclass
class Result:
    """What the cases of one target did."""

    counts: Counter[str] = field(default_factory=Counter)
    growth: float | None = None
    """Megabytes, of the process that grew most; None if none had `FEWEST` cases."""

    def add(self, other: Result) -> None:
        self.counts += other.counts
        self.growth = max((x for x in (self.growth, other.growth) if x is not None), default=None)

    @property
    def failed(self) -> bool:
        return bool(self.counts["unforeseen"] or self.counts["hang"]) or (self.growth or 0) > GROWTH

    @property
    def cells(self) -> list[str]:
        names = ("accepted", "refused", "unforeseen", "hang")
        growth = "too few cases" if self.growth is None else f"{self.growth:.0f} MB"
        return [*(f"{n:,}" for n in (self.counts.total(), *(self.counts[x] for x in names))), growth]


def prepare() -> None:
    """In each process: one thread, and a limit on the time of each case."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _hang)
    signal.signal(signal.SIGALRM, _hang)


def fuzz(target: str, seed: int, seconds: float) -> Result:
    """Run cases until the time is over."""
    result = Result()
    beginning = time.monotonic()
    memory: list[float] = []
    _run(target, seed)  # loads what the target needs
    while (passed := time.monotonic() - beginning) < seconds:
        result.counts[_run(target, seed)] += 1
        seed += 1
        if passed >= seconds * len(memory) / SAMPLES:
            memory.append(_megabytes())
    if result.counts.total() >= FEWEST:
        third = len(memory) // 3
        result.growth = median(memory[2 * third :]) - median(memory[third : 2 * third])
    return result


def _run(target: str, seed: int) -> str:
    _limit(LONGEST, LONGEST_WAIT)
    try:
        return run(target, seed)
    except (Exception, Hang) as error:
        print(f"{target}, seed {seed}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
        traceback.print_exc(limit=-4)
        return "hang" if isinstance(error, Hang) else "unforeseen"
    finally:
        _limit(0, 0)


def _limit(processor: float, wall: float) -> None:
    """Raise `Hang` after so many seconds, and every second until the case has ended."""
    signal.setitimer(signal.ITIMER_PROF, processor, 1 if processor else 0)
    signal.setitimer(signal.ITIMER_REAL, wall, 1 if wall else 0)


def _megabytes() -> float:
    """The memory of this process, without what malloc could give back."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def _hang(*_: object) -> None:
    raise Hang(f"more than {LONGEST} seconds of processor time, or {LONGEST_WAIT} in all")
