"""Settings that are plain numbers."""

from __future__ import annotations


def positive(what: str, value: object, hint: str = "") -> None:
    """Raise unless the value is a number > 0. Not every backend could use a learned one."""
    if not isinstance(value, int | float):
        raise TypeError(f"{what} is a number, got {type(value).__name__}; to learn one, multiply the queries by it")
    if not value > 0:
        raise ValueError(f"{what} must be > 0, got {value}{hint}")


def whole(what: str, value: object) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{what} is a whole number, got {value!r}")
