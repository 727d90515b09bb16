"""Figures of matplotlib as SVG files that are the same on every machine up to rounding, and how they are compared."""

from __future__ import annotations

import base64
import io
import re
from itertools import zip_longest
from typing import Any

import numpy as np

STYLE: dict[str, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "white",  # legible on a dark page too
    "figure.figsize": (6.4, 3.0),
    "font.size": 9,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "regard",
}
SHIFT, SHADE = 2.0, 6
"""Coordinates in points, and levels of a colour in 255, by which two drawings of one figure may differ: processors
round differently, and a curve of a training shows it."""
NUMBER = re.compile(r"#[0-9a-f]{6}\b|-?\d+(?:\.\d+)?(?:e-?\d+)?")
IMAGE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")


def take_figures() -> list[tuple[str, str]]:
    """All open figures as (SVG, title), which are then closed."""
    import matplotlib.pyplot as plt

    drawn = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        drawn.append((_plain(out.getvalue()), (figure.get_suptitle() or ", ".join(titles)).replace("\n", " ")))
        plt.close(figure)
    return drawn


def _plain(svg: str) -> str:
    """Without metadata; names that are hashes of rounded numbers become 1, 2, …; no spaces at the ends of lines."""
    svg = re.sub(r" <metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    numbers: dict[str, str] = {}
    name = re.compile(r"(?<=[#\"])([A-Za-z]+(?:\d+_\d+_)?[0-9a-f]{10})(?=[)\"])")
    svg = name.sub(lambda match: numbers.setdefault(match[1], f"n{len(numbers) + 1}"), svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def difference(old: str, new: str) -> str:
    """What differs between two drawings of a figure, in words; empty if nothing but rounding."""
    images = [IMAGE.findall(svg) for svg in (old, new)]
    for one, other in zip_longest(*images):
        if one is None or other is None or not _same_image(one, other):
            return "an image in it differs"
    old, new = (IMAGE.sub("", svg) for svg in (old, new))
    for one, other in zip_longest(NUMBER.split(old), NUMBER.split(new)):
        if one != other:
            return f"{str(other)[:60]!r} instead of {str(one)[:60]!r}"
    for one, other in zip(NUMBER.findall(old), NUMBER.findall(new), strict=True):
        if one != other and not _close(one, other):
            return f"{other} instead of {one}"
    return ""


def _close(one: str, other: str) -> bool:
    if one.startswith("#") or other.startswith("#"):
        if not (one.startswith("#") and other.startswith("#")):
            return False
        pairs = zip(bytes.fromhex(one[1:]), bytes.fromhex(other[1:]), strict=True)
        return all(abs(a - b) <= SHADE for a, b in pairs)
    return abs(float(one) - float(other)) <= SHIFT


def _same_image(one: str, other: str) -> bool:
    from matplotlib.image import imread

    first, second = (imread(io.BytesIO(base64.b64decode(data))) for data in (one, other))
    return first.shape == second.shape and bool(np.abs(first - second).max() <= SHADE / 255)
