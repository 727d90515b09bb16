"""docs/additive.svg: additive attention over the length, drawn from speeds.csv.

python -m tools.additive_plot
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

from benchmarks.timing import RESULTS

PICTURE = Path(__file__).parent.parent / "docs" / "additive.svg"
ROW = re.compile(r"additive (forward|forward\+backward) B=1 T=(\d+) D=256, float32")
COLOURS = {"eager": "#c2571a", "torch.compile": "#8a6fb8", "regard": "#1f7a4d", "limit": "#8a8a8a"}
WIDE, TALL, LEFT, TOP, GAP = 330, 250, 60, 40, 80

Series = dict[str, list[tuple[int, float]]]


def panels() -> tuple[dict[str, Series], str]:
    """Median milliseconds by length, of each way and panel; and where they were measured."""
    found: dict[str, Series] = {"forward": {}, "forward+backward": {}}
    where = ""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            match = ROW.fullmatch(row["work"])
            if match:
                found[match[1]].setdefault(row["by"], []).append((int(match[2]), float(row["p50"])))
                where = f"{row['machine']}, torch {row['torch']}, {row['date']}"
    return found, where


def picture() -> str:
    found, where = panels()
    points = [point for series in found.values() for line in series.values() for point in line]
    lengths = sorted({t for t, _ in points})
    low, high = (f(math.log10(ms) for _, ms in points) for f in (min, max))
    low, high = math.floor(low), math.ceil(high)

    def place(panel: int, t: int, ms: float) -> tuple[float, float]:
        across = (math.log2(t) - math.log2(lengths[0])) / (math.log2(lengths[-1]) - math.log2(lengths[0]))
        return LEFT + panel * (WIDE + GAP) + across * WIDE, TOP + TALL * (high - math.log10(ms)) / (high - low)

    width, height = LEFT + 2 * WIDE + GAP + 40, TOP + TALL + 70
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for panel, (title, series) in enumerate(found.items()):
        x0, x1 = place(panel, lengths[0], 1)[0], place(panel, lengths[-1], 1)[0]
        out.append(f'<text x="{x0}" y="{TOP - 16}" font-weight="bold">additive attention, {title}</text>')
        for power in range(low, high + 1):
            y = place(panel, lengths[0], 10.0**power)[1]
            out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}" stroke="#dddddd"/>')
            out.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
        out.append(f'<text x="{x0 - 44}" y="{TOP - 16}">ms</text>')
        for t in lengths:
            x = place(panel, t, 1)[0]
            out.append(f'<text x="{x:.1f}" y="{TOP + TALL + 18}" text-anchor="middle">{t}</text>')
        for by, line in series.items():
            at = [place(panel, *point) for point in sorted(line)]
            path, colour = " ".join(f"{x:.1f},{y:.1f}" for x, y in at), COLOURS[by]
            dash = ' stroke-dasharray="4 4"' if by == "limit" else ""
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in at if by != "limit"]
    for at, (by, colour) in enumerate(COLOURS.items()):
        x, y = LEFT + at * 130, TOP + TALL + 44
        out.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{x + 28}" y="{y}">{by}</text>')
    out.append(f'<text x="{width - 12}" y="{height - 8}" text-anchor="end" fill="#666666">T keys and queries, D = 256,')
    out[-1] += f" float32; {where}</text>"
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
