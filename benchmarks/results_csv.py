"""A CSV of figures, one line per run: what `docs/results.md` is made from."""

from __future__ import annotations

import csv
import io
import statistics
from itertools import groupby
from typing import TYPE_CHECKING

from regard.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

KEY = ("table", "recipe", "seed")  # which run a line is of
PLACE = ("machine", "versions", "day")


def kept(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def keep(file: Path, columns: Sequence[str], new: dict[str, str]) -> None:
    """Add a run's figures, in place of older ones of the same run; the file is whole at any moment."""
    rows = [old for old in kept(file) if any(old[name] != new[name] for name in KEY)]
    rows = sorted([*rows, new], key=lambda row: [row[name] for name in KEY])
    lines = io.StringIO()
    writer = csv.DictWriter(lines, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(file, lines.getvalue())


def spread(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation over the seeds; the one value where there is one."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def places(rows: list[dict[str, str]]) -> str:
    """Where and when the figures were measured."""
    return "; ".join(", ".join(sorted({row[name] for row in rows})) for name in PLACE)


def by_recipe(rows: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """The rows of each recipe, which differ in their seeds, in the order of the file."""
    return [list(group) for _, group in groupby(rows, key=lambda row: row["recipe"])]


def line(runs: list[dict[str, str]], cells: list[str]) -> str:
    """One line of a table: the recipe, its cells, its seeds."""
    return f"| {runs[0]['recipe']} | {' | '.join(cells)} | {', '.join(row['seed'] for row in runs)} |"


def tables(
    titles: Mapping[str, tuple[str, str]], rows: list[dict[str, str]]
) -> Iterator[tuple[list[str], list[dict[str, str]]]]:
    """For each table that has figures: its heading with the remark below it, as lines, and its rows."""
    for name, (title, remark) in titles.items():
        same = [row for row in rows if row["table"] == name]
        if same:
            yield [f"## {title}", "", f"{remark} {places(same)}.", ""], same
