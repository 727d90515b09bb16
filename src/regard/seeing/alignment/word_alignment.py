"""Word alignment: hard links between words, and the alignment error rate (AER)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float
    from torch import Tensor

Links = set[tuple[int, int]]  # (word of the source, word of the target), both from 0


def parse_links(text: str | None) -> Links:
    """Links written "0-0 1-2"."""
    links = set()
    for link in (text or "").split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise ValueError(f"{link!r} is not an alignment link; links look like 0-0 1-2")
        links.add((int(source), int(target)))
    return links


def best_links(weights: Float[Tensor, "target source"]) -> Links:
    """Link each target word to the source word of largest weight. A row of zeros gets no link."""
    largest, where = weights.max(-1)
    return {(source, target) for target, source in enumerate(where.tolist()) if largest[target] > 0}


def alignment_error_rate(predicted: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links]) -> float:
    """The alignment error rate of a corpus (Och & Ney 2003), P ⊇ S:

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
    """
    hits = total = 0
    for a, s, p in zip(predicted, sure, possible, strict=True):
        hits += len(a & s) + len(a & (p | s))
        total += len(a) + len(s)
    if not total:
        raise ValueError("no sentence has a link, predicted or sure, so there is no error rate")
    return 1 - hits / total
