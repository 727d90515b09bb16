"""A pair of source and target, and the problem of a row that is no pair."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of a corpus.

    `alignment` holds gold links "i-j" between words of the source and the target (what spaces separate, from 0),
    separated by spaces; `possible` those that may also be right (Och and Ney 2003). None where they are not known.
    """

    source: str
    target: str
    row: int = -1  # of the corpus, from 0, bad rows counted
    where: str = ""  # file:line
    alignment: str | None = None
    possible: str | None = None


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that is no pair: its kind, to count by, and what is wrong with it."""

    kind: str
    reason: str
