"""Timing and memory: calls taken in turn within one run, quantiles, and one CSV with machine and versions."""

from __future__ import annotations

import csv
import datetime
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "speeds.csv"


@dataclass
class Row:
    """One measurement: what was done, by which implementation, how long it took (ms) or how much it held (MiB)."""

    work: str
    by: str
    unit: str
    p20: float
    p50: float
    p80: float
    date: str = ""
    commit: str = ""
    machine: str = ""
    torch: str = ""
    python: str = ""


def alternate(
    functions: dict[str, Callable[[], object]],
    repeats: int,
    calls: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each function: one after the other, `repeats` rounds, so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()  # whatever the first call loads or compiles is not the work
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            for _ in range(calls):
                function()
            times[name].append((clock() - start) * 1e3 / calls)
    return {name: sorted(values) for name, values in times.items()}


def row(work: str, by: str, values: list[float], unit: str = "ms") -> Row:
    return _row(work, by, unit, *quantiles(values), f"{_cpu()}, {torch.get_num_threads()} threads")


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """p20, p50 and p80."""
    values = sorted(values)
    p20, p50, p80 = (values[round(q * (len(values) - 1))] for q in (0.2, 0.5, 0.8))
    return p20, p50, p80


def gpu_row(work: str, by: str, p20: float, p50: float, p80: float, unit: str = "ms") -> Row:
    return _row(work, by, unit, p20, p50, p80, torch.cuda.get_device_name())


def _row(work: str, by: str, unit: str, p20: float, p50: float, p80: float, machine: str) -> Row:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Row(work, by, unit, p20, p50, p80, today, _commit(), machine, torch.__version__, platform.python_version())


# Not resource.getrusage: its peak survives exec, so a child of a large process starts from its parent's.
PEAK = """
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
"""


def peak_memory(setup: str, work: str) -> float:
    """MiB by which the peak of a fresh process grows while it does `work` after `setup`."""
    code = (
        f"import torch, regard\ntorch.set_num_threads({torch.get_num_threads()})\n{PEAK}\n{setup}\n"
        f"before = peak()\n{work}\nprint(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    return float(done.stdout)


def write(rows: list[Row], path: Path = RESULTS) -> None:
    """Replace the rows of the same work, keep the others: one file for every benchmark."""
    names = [field.name for field in fields(Row)]
    old = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            old = list(csv.DictReader(file))
    done = {x.work for x in rows}
    kept = [x for x in old if x["work"] not in done]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(
            kept + [{**asdict(x), **{p: f"{getattr(x, p):.4g}" for p in ("p20", "p50", "p80")}} for x in rows]
        )


@cache
def _commit() -> str:
    """The commit that is measured; "" in a copy without git, where `git blame` of the file tells it later."""
    try:
        asked = ["git", "rev-parse", "--short=8", "HEAD"]
        return subprocess.run(asked, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")), "cpu")
