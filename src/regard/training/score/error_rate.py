"""Edit distance and error rate, by characters or words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...noun_count import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def distance(written: Sequence[object], reference: Sequence[object]) -> int:
    """The fewest insertions, deletions and substitutions that make one of the other (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))  # row j: the distance of what was read so far to the first j of reference
    for i, mine in enumerate(written, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(reference, 1):
            diagonal, row[j] = row[j], min(diagonal + (mine != wanted), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def error_rate(written: Sequence[Sequence[object]], references: Sequence[Sequence[object]]) -> float:
    """Σ distance / Σ length of the references, over a corpus: of strings, the character error rate.

    It exceeds 1 where the texts are much longer than the references.
    """
    if len(written) != len(references):
        given = f"{count_of(len(written), 'text')} and {count_of(len(references), 'reference')}"
        raise ValueError(f"given are {given}; there must be one for each")
    total = sum(map(len, references))
    if not total:
        raise ValueError("the references are empty, so there is no error rate")
    return sum(map(distance, written, references)) / total
