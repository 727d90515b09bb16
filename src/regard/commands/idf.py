"""`regard idf`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from .typer_app import app

ROWS = 30  # printed at most, unless words are named


@app.command()
def idf(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Documents, one per file; of a single file, one per line.")
    ],
    word: Annotated[
        list[str] | None, typer.Option("--word", metavar="WORD", help="Print this word; may be given several times.")
    ] = None,
) -> None:
    """Print how rare each word of your documents is: inverse document frequencies, by both formulas.

    n_j is the number of documents with the word, N the number of documents. The rarest words come first. TF-IDF weighs
    a word of a text by the number of times it occurs there, times its inverse document frequency.

    \b
    Examples:
      regard idf letter-1.txt letter-2.txt letter-3.txt
      regard idf reviews.txt --word David --word Beckham
    """
    import numpy as np

    from ..data.inverse_document_frequency import document_counts, inverse_document_frequency
    from ..data.pair import RowProblem
    from ..data.text_lines import lines

    texts = []
    for file in files:
        content = []
        for number, line in enumerate(lines(file), 1):
            if isinstance(line, RowProblem):
                raise ValueError(f"{file}:{number} is no text: {line.reason}")
            content.append(line)
        texts += ["\n".join(content)] if len(files) > 1 else content
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ValueError(f"{', '.join(map(str, files))}: there is no document with words in it")
    counts = document_counts(texts)
    chosen = dict.fromkeys(name.lower() for name in word or counts)
    if missing := [name for name in chosen if name not in counts]:
        raise ValueError(f"no document has the word {missing[0]!r}; a word is letters and digits without spaces")
    words = sorted(chosen, key=lambda name: (counts[name], word is None and name))
    numbers = np.array([counts[name] for name in words])
    plain, smoothed = (inverse_document_frequency(numbers, len(texts), kind) for kind in ("plain", "smoothed"))
    shown = words if word else words[:ROWS]
    width = max(len(name) for name in [*shown, "word"])
    typer.echo(f"{len(texts)} document{'s' if len(texts) > 1 else ''}")
    typer.echo(f"{'word':<{width}}  n_j  log(N/n_j)  log((1+N)/(1+n_j))+1")
    for name, count, first, second in zip(shown, numbers, plain, smoothed, strict=False):
        typer.echo(f"{name:<{width}}  {count:>3}  {first:>10.3f}  {second:>20.3f}")
    if len(shown) < len(words):
        typer.echo(f"and {len(words) - len(shown):,} more; --word prints one of them")
