"""docs/performance.md: its tables are written from results.csv, so that no figure there is typed by hand.

python -m benchmarks.page        rewrites what stands between <!-- rows: CPU --> and <!-- end -->
"""

from __future__ import annotations

import csv
import re
from itertools import groupby
from pathlib import Path

from .timing import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
TABLE = re.compile(r"(<!-- rows: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(wanted: str) -> str:
    """The rows whose machine's name has this word, each with its ratio to regard's row of the same work."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if wanted in row["machine"]]
    lines = ["| work | by | p20 | p50 | p80 | | ÷ regard |", "|---|---|---:|---:|---:|---|---:|"]
    for work, group in groupby(rows, key=lambda row: row["work"]):
        same = list(group)
        ours = next(float(row["p50"]) for row in same if row["by"].startswith("regard"))
        for at, row in enumerate(same):
            numbers = " | ".join(row[p] for p in ("p20", "p50", "p80"))
            ratio = float(row["p50"]) / ours
            lines.append(f"| {'' if at else work} | {row['by']} | {numbers} | {row['unit']} | {ratio:.3g} |")
    versions = sorted({(row["date"], row["machine"], f"torch {row['torch']}") for row in rows})
    lines += ["", *(f"Measured {', '.join(version)}." for version in versions), ""]
    return "\n".join(lines)


def page() -> str:
    return TABLE.sub(lambda found: found[1] + table(found[2]) + found[3], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
