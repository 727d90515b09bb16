"""`make bench`: every row this machine can run, a table of ratios, and benchmarks/speeds.csv."""

from __future__ import annotations

from itertools import groupby

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import attention_cpu as cpu
from benchmarks.timing import Row, write
from tools import performance_page as page


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)  # what the project's own machines have
    console = Console()
    rows = list(track(cpu.rows(), description="measuring", console=console, total=24))
    write(rows)
    page.PAGE.write_text(page.page(), encoding="utf-8")
    console.print(table(rows))
    console.print("written to benchmarks/speeds.csv and docs/performance.md")


def table(rows: list[Row]) -> Table:
    """Every row with its ratio to regard's own row of the same work, which stands above its rows."""
    shown = Table("by", "p20", "p50", "p80", "", "÷ regard", title="one run, functions taken in turn")
    for work, group in groupby(rows, key=lambda one: one.work):
        same = list(group)
        ours = next(one.p50 for one in same if one.by.startswith("regard"))
        shown.add_section()
        shown.add_row(f"[bold]{work}[/]")
        for one in same:
            shown.add_row(one.by, *(f"{x:.4g}" for x in (one.p20, one.p50, one.p80)), one.unit, f"{one.p50 / ours:.3g}")
    return shown


if __name__ == "__main__":
    main()
