"""Word alignment: hard links between words, the links of two directions joined, and the alignment error rate (AER)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxtyping import Float
    from torch import Tensor

Links = set[tuple[int, int]]  # (word of the source, word of the target), both from 0
NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


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


def symmetrize(
    forward: Links, backward: Links, method: Literal["intersection", "union", "grow-diag"] = "grow-diag"
) -> Links:
    """Join the links of two directions, both written (source, target) (Och & Ney 2003, section 4.3).

    "grow-diag" starts from the intersection and adds links of the union that are neighbours (diagonal ones included)
    of a link it has, as long as they give a word its first link (Koehn, Och & Marcu 2003).
    """
    intersection, union = forward & backward, forward | backward
    if method == "intersection":
        return intersection
    if method == "union":
        return union
    if method != "grow-diag":
        raise ValueError(f'method is "intersection", "union" or "grow-diag", got {method!r}')
    links = set(intersection)
    added = True
    while added:
        added = False
        for source, target in sorted(links):
            for i, j in NEIGHBOURS:
                new = source + i, target + j
                unlinked = all(new[0] != a for a, _ in links) or all(new[1] != b for _, b in links)
                if new in union and new not in links and unlinked:
                    links.add(new)
                    added = True
    return links


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
