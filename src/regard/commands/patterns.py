"""`regard patterns`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Device, find_device
from .see import ModelName, is_ours
from .text_input import ending
from .typer_app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 512
"""Tokens of one text; what is longer is cut unless --length says otherwise."""
DRAWN = ("next", "previous", "self", "first", "delimiter", "punctuation", "identical", "induction")
"""The patterns of the picture: shares of a head's weight, from 0 to 1."""
TEXTS = 1_000_000
"""Lines that may be asked for."""
AT_MOST = 1 << 30
"""Bytes of a file that are read."""


@app.command()
def patterns(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="One text; or a file, each line a text (.xz too).")],
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, max=TEXTS, help="Read at most so many lines of a file.")
    ] = 100,
    length: Annotated[int, typer.Option(metavar="N", min=2, help="Cut texts to so many tokens.")] = LONGEST,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the scores into a file: .png, .svg or .pdf.")
    ] = None,
    device: Device = "auto",
) -> None:
    """What each head of a model does, layers × heads, by the published definitions, over a text or a file of them.

    A letter is a label: the head's score passed the paper's threshold. Below it, for each pattern, the heads that score
    highest and p, how often keys drawn at random get as much weight.

    \b
    Examples:
      regard patterns minilm "The early bird catches the worm, and the late worm lives."
      regard patterns smollm2 article.txt --length 2048 --save-plot heads.png
    """
    from rich.console import Console

    from ..seeing.analysis import Patterns
    from ..seeing.capture.huggingface_text_model import load_text_model
    from ..seeing.drawing import best_heads_table, check_figure_path, label_table, save_head_maps

    if save_plot is not None:
        check_figure_path(save_plot)
    if is_ours(model):
        raise ValueError(f"{model} translates; patterns are about models that read one text. See it with: regard see")
    text_model = load_text_model(model, find_device(device))
    if text_model.is_encoder_decoder:
        raise ValueError(f"{model} writes what it reads anew; patterns are about models that read one text")
    text_model.max_length = min(text_model.max_length, length)
    console, all_patterns = Console(), Patterns()
    for line in _texts(text, texts):
        read = text_model.encode(line)
        seen = text_model.read(read)
        if not len(seen):
            raise ValueError(f"{model}: {seen.advice}")
        if seen.unproven and not all_patterns.texts:
            why = ", ".join(dict.fromkeys(call.fidelity().word for call in seen.unproven))
            console.print(f"{len(seen.unproven)} of {len(seen)} calls are shown without a proof: {why}")
        if seen.faithful is False:
            console.print(seen)
            raise ValueError("what was seen is not what the model computed (see the table), so it is not judged")
        all_patterns.add(seen, read)
    console.print(label_table(all_patterns))
    console.print("")
    console.print(best_heads_table(all_patterns))
    share = all_patterns.sink_share()
    console.print(f"\n{all_patterns.texts} texts; {share:.0%} of the heads give the first token over 0.3: sinks")
    if save_plot is not None:
        names = [name for name in DRAWN if name in all_patterns.heads()[0].scores]
        save_head_maps(save_plot, {name: all_patterns.scores(name) for name in names})
        console.print(f"wrote {save_plot}", markup=False)


def _texts(given: str, most: int) -> Iterator[str]:
    """The text itself, or the lines of the file of that name that have words in them."""
    from itertools import islice

    from ..data.pair import RowProblem
    from ..data.text_lines import lines

    if not _is_file(given):
        if _is_path(given):
            raise ValueError(
                f"there is no file {given:.200}; what looks like a file's name is not read as a text, unless it ends "
                "with a full stop"
            )
        yield given
        return
    size = Path(given).stat().st_size
    if size > AT_MOST:
        raise ValueError(f"{given} has {size:,} bytes; at most {AT_MOST:,} are read: split it")
    bad: list[str] = []

    def real() -> Iterator[str]:
        for number, line in enumerate(lines(Path(given)), 1):
            if isinstance(line, RowProblem):
                bad.append(f"{given}:{number} is no text: {line.reason}")
            elif line.strip():
                yield line

    found = list(islice(real(), most))
    if bad:
        more = f"; {len(bad):,} such lines are left out" if len(bad) > 1 else "; it is left out"
        typer.echo(f"regard: {bad[0]}{more}", err=True)
    if not found:
        raise ValueError(f"{given} has no line with words in it")
    yield from found


def _is_file(given: str) -> bool:
    try:
        return len(given) < 4096 and Path(given).is_file()
    except (OSError, ValueError):
        return False


def _is_path(given: str) -> bool:
    """Whether this looks like the name of a file: by its ending, or a single word with a separator in it."""
    if given.endswith("."):
        return False
    return ending(given) == "text" or (len(given.split()) == 1 and ("/" in given or os.sep in given))
