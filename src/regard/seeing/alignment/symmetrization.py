"""Symmetrization: the alignment links of two translation directions joined into one set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .alignment_error import Links

NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)]


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
