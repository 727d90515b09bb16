"""`python -m tests.fuzz`: fuzz every target for some time, and write the counts into docs/promises.md.

A case that raises what it should not, or takes longer than LONGEST seconds, is printed with its seed, and the exit
status is 1. Add such a case to tests/fuzz/corpus.json once it is mended.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT

from .targets import TARGETS, run

LONGEST = 30
"""Seconds that one case may take."""
PAGE = ROOT / "docs" / "promises.md"
BEGIN, END = "<!-- fuzz: written by python -m tests.fuzz -->", "<!-- end of fuzz -->"


class Hang(BaseException):
    """A case took too long."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="time in all, shared by the targets")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--write", action="store_true", help="write the counts into docs/promises.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _hang)
    rows = []
    names = options.target or list(TARGETS)
    for name in names:
        rows.append(_fuzz(name, options.seed, options.seconds / len(names)))
        print(" | ".join(map(str, rows[-1])), flush=True)
    table = [
        "| target | cases | accepted | refused with a reason | unforeseen | hangs | memory grew |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    table += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        table += ["", f"{options.seconds:,.0f} seconds in all, seeds from {options.seed:,} on."]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(table) + f"\n{END}{after}", encoding="utf-8")
    return int(any(row[4] or row[5] for row in rows))


def _fuzz(target: str, seed: int, seconds: float) -> tuple[str, int, int, int, int, int, str]:
    counts: Counter[str] = Counter()
    ending, warm = time.monotonic() + seconds, 0.0
    while time.monotonic() < ending:
        signal.alarm(LONGEST)
        try:
            counts[run(target, seed)] += 1
        except (Exception, Hang) as error:
            counts["hang" if isinstance(error, Hang) else "unforeseen"] += 1
            print(f"{target}, seed {seed}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            traceback.print_exc(limit=-4)
        finally:
            signal.alarm(0)
        seed += 1
        if sum(counts.values()) == 200:
            warm = _megabytes()  # what the first cases load is not growth
    grown = f"{_megabytes() - warm:.0f} MB" if warm else "–"
    cases = counts.total()
    return target, cases, counts["accepted"], counts["refused"], counts["unforeseen"], counts["hang"], grown


def _megabytes() -> float:
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def _hang(*_: object) -> None:
    raise Hang(f"more than {LONGEST} seconds")


if __name__ == "__main__":
    sys.exit(main())
