"""`regard cache`."""

from __future__ import annotations

from typing import Annotated

import typer

from .typer_app import app


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything that no process is using.")] = False,
) -> None:
    """Show the cache of prepared corpora, which runs share, or clear it.

    `regard train` keeps encoded corpora and vocabularies there, so that a second run with the same files and settings
    starts at once. Runs have their own links to the files: they lose nothing when the cache is cleared. The folder is
    $REGARD_CACHE, else $XDG_CACHE_HOME/regard, else ~/.cache/regard; it is kept below $REGARD_CACHE_LIMIT gigabytes, or
    20.

    \b
    Examples:
      regard cache
      regard cache --clear
    """
    from ..data.preparation import KINDS, PreparationCache

    cache = PreparationCache()
    if clear:
        removed, left = cache.clear()
        typer.echo(f"{removed} removed from {cache.folder}" + (f"; {left} in use or not removable" if left else ""))
        return
    entries = cache.entries()
    typer.echo(f"{cache.folder}: {sum(entry.bytes for entry in entries) / 1e6:,.1f} MB")
    for kind, meaning in KINDS.items():
        sizes = [entry.bytes for entry in entries if entry.path.parent.name == kind]
        typer.echo(f"  {len(sizes):>5} {meaning}, {sum(sizes) / 1e6:,.1f} MB")
