"""Counters and histograms in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class CounterMetric:
    """A number that only grows, for each combination of labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, labels
        self._counts: Counter[tuple[str, ...]] = Counter() if labels else Counter({(): 0})
        self._lock = threading.Lock()

    def add(self, *values: str, amount: int = 1) -> None:
        """One value for each label."""
        with self._lock:
            self._counts[values] += amount

    def lines(self) -> list[str]:
        with self._lock:
            counts = sorted(self._counts.items())
        named = [(dict(zip(self.labels, values, strict=True)), count) for values, count in counts]
        return [*_head(self.name, self.about, "counter"), *(f"{self.name}{_labels(at)} {n}" for at, n in named)]


class HistogramMetric:
    """How many observations were at most each of `bounds`."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, count = _head(self.name, self.about, "histogram"), 0
        for bound, each in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
            count += each
            lines.append(f"{self.name}_bucket{_labels({'le': bound})} {count}")
        return [*lines, f"{self.name}_sum {total:.6f}", f"{self.name}_count {count}"]


def gauge_lines(name: str, about: str, value: float) -> list[str]:
    """A number that rises and falls."""
    return [*_head(name, about, "gauge"), f"{name} {value}"]


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labels(values: dict[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if values else ""
