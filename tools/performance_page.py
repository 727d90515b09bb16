"""docs/performance.md: its tables are written from speeds.csv, so that no figure there is typed by hand.

python -m tools.performance_page        rewrites what stands between <!-- rows: CPU --> and <!-- end -->

`rows: WHERE, WORK` is a line per measurement of the machines and works so named, `ways: WHERE, WORK` a line per work
with its medians side by side.
"""

from __future__ import annotations

import csv
import re
from itertools import groupby
from pathlib import Path

from benchmarks.timing import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- (rows|ways): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
WAYS = ("eager", "torch.compile", "regard", "limit")


def chosen(wanted: str) -> list[dict[str, str]]:
    """The rows whose machine's name has the first word, and whose work begins with the second, if there is one."""
    machine, _, work = wanted.partition(", ")
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if machine in row["machine"] and row["work"].startswith(work)]


def lines(rows: list[dict[str, str]]) -> list[str]:
    """A line per row, with its ratio to regard's row of the same work."""
    out = ["| work | by | p20 | p50 | p80 | | ÷ regard |", "|---|---|---:|---:|---:|---|---:|"]
    for work, group in groupby(rows, key=lambda row: row["work"]):
        same = list(group)
        ours = next(float(row["p50"]) for row in same if row["by"].startswith("regard"))
        for at, row in enumerate(same):
            numbers = " | ".join(row[p] for p in ("p20", "p50", "p80"))
            ratio = float(row["p50"]) / ours
            out.append(f"| {'' if at else work} | {row['by']} | {numbers} | {row['unit']} | {ratio:.3g} |")
    return out


def abreast(rows: list[dict[str, str]]) -> list[str]:
    """A line per work: medians of every way there is to do it, and how many times faster ours is than the first."""
    out = [f"| work | | {' | '.join(WAYS)} | eager ÷ regard |", "|---|---|" + "---:|" * (len(WAYS) + 1)]
    for work, group in groupby(rows, key=lambda row: row["work"]):
        same = list(group)
        median = {row["by"]: row["p50"] for row in same}
        ratio = f"{float(median['eager']) / float(median['regard']):.3g}" if "eager" in median else ""
        out.append(f"| {work} | {same[0]['unit']} | {' | '.join(median.get(by, '') for by in WAYS)} | {ratio} |")
    return out


def table(kind: str, wanted: str) -> str:
    rows = chosen(wanted)
    runs = sorted((row["date"], row["machine"], f"torch {row['torch']}", row["commit"]) for row in rows)
    measured = [
        f"Measured {', '.join(run)}, commit {', '.join(dict.fromkeys(row[3] for row in same))}."
        for run, same in groupby(runs, key=lambda row: row[:3])
    ]
    return "\n".join([*(lines if kind == "rows" else abreast)(rows), "", *measured, ""])


def page() -> str:
    return TABLE.sub(lambda found: found[1] + table(found[2], found[3]) + found[4], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
