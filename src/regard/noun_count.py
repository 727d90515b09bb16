"""A number with its noun, for messages: 1 row, 2 rows."""

from __future__ import annotations


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """The count with the noun in the singular or the plural, which ends in s unless given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
