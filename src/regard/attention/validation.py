"""Settings that are plain numbers."""

from __future__ import annotations


def positive(what: str, given: object, hint: str = "") -> None:
    """Refuse anything that is not a number > 0. A learned one would work on some backends and not on others."""
    if not isinstance(given, int | float):
        raise TypeError(f"{what} is a number, got {type(given).__name__}; to learn one, multiply the queries by it")
    if not given > 0:
        raise ValueError(f"{what} must be > 0, got {given}{hint}")


def whole(what: str, given: object) -> None:
    if not isinstance(given, int):
        raise TypeError(f"{what} is a whole number, got {given!r}")
