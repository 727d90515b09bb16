"""A warning on stderr about words or characters that a model's vocabulary does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 10
"""Names in one warning."""


def warn_unknown_words(names: Sequence[str], consequence: str, where: str = "") -> None:
    """Nothing where there are none. `where` is the line; `consequence` what the model does with them."""
    if names:
        listed = ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
        typer.echo(f"regard: {where}{': ' if where else ''}the model does not know {listed}; {consequence}", err=True)
