"""`python -m tests.fuzz`: fuzz every target for some time, and write the counts into docs/promises.md.

Each core runs a process of its own. A case that raises what it should not, or takes longer than `LONGEST` seconds of
processor time, is printed with its seed. Add such a case to tests/fuzz/corpus.json once it is mended. The exit status
is 1 after such a case, after a process that died, and where memory grew by more than `GROWTH`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tests.support.paths import ROOT

from .process import Result, fuzz, prepare
from .targets import TARGETS

SEEDS = 10_000_000
"""Between the first seeds of two processes."""
PAGE = ROOT / "docs" / "promises.md"
BEGIN, END = "<!-- fuzz: written by python -m tests.fuzz -->", "<!-- end of fuzz -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="time in all, shared by the targets")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    parser.add_argument("--write", action="store_true", help="write the counts into docs/promises.md")
    options = parser.parse_args()
    table = [
        "| target | cases | accepted | refused with a reason | unforeseen | hangs | memory grew |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(table), flush=True)
    failed = False
    names = options.target or list(TARGETS)
    processes = Processes(options.cores)
    for name in names:
        result = processes.fuzz(name, options.seed, options.seconds / len(names))
        failed |= result.failed
        table.append("| " + " | ".join([name, *result.cells]) + " |")
        print(table[-1], flush=True)
    table += ["", f"{options.seconds:,.0f} seconds on {options.cores} cores, seeds from {options.seed:,} on."]
    print("\n".join(table[-2:]), flush=True)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}{after}", encoding="utf-8")
    return int(failed)


class Processes:
    """A process for each core. All targets use the same ones; those of a pool in which one died are replaced."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.cores, multiprocessing.get_context("spawn"), prepare)

    def fuzz(self, target: str, seed: int, seconds: float) -> Result:
        """The counts of all processes; one that dies is an unforeseen case."""
        total = Result()
        results = [self.pool.submit(fuzz, target, seed + core * SEEDS, seconds) for core in range(self.cores)]
        for result in results:
            try:
                total.add(result.result())
            except BrokenProcessPool as error:
                print(f"{target}: a process died: {error}", file=sys.stderr)
                total.counts["unforeseen"] += 1
        if total.counts["unforeseen"]:
            self.pool.shutdown()
            self.pool = self._start()
        return total


if __name__ == "__main__":
    sys.exit(main())
