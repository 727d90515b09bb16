"""`regard patterns`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from ..noun_count import count_of
from .shared_options import Device, ModelName, StateFolder, TrustRemoteCode, find_device
from .text_input import digest, text_or_lines
from .typer_app import app

if TYPE_CHECKING:
    from ..seeing.corpus import Sums

MAX_LENGTH = 512
"""Default of --length."""
PLOTTED = ("next", "previous", "self", "first", "delimiter", "punctuation", "identical", "induction")
"""The patterns of the figure: shares of a head's weight, from 0 to 1."""
MAX_TEXTS = 1_000_000
"""Limit of --texts."""


@app.command()
def patterns(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="One text; or a file, each line a text (.xz too).")],
    texts: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_TEXTS, help="Read at most N lines of a file.")
    ] = 100,
    length: Annotated[int, typer.Option(metavar="N", min=2, help="Truncate texts to N tokens.")] = MAX_LENGTH,
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the scores into a file: .png, .svg or .pdf.")
    ] = None,
    save_table: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the scores of all heads: .csv or .parquet.")
    ] = None,
    state: StateFolder = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Find the patterns of a model's heads, by the published definitions, over a text or the lines of a file.

    A letter is a label: the head's score passed the paper's threshold. Below, for each pattern, the heads with the
    highest scores, and p: how often random keys get as much weight.

    \b
    Examples:
      regard patterns minilm "The early bird catches the worm, and the late worm lives."
      regard patterns smollm2 article.txt --length 2048 --save-plot heads.png
      torchrun --nproc-per-node 8 -m regard patterns smollm2 corpus.txt.xz --texts 1000000 --state sums
    """
    from rich.console import Console

    from .. import __version__
    from ..decoding.load_model_and_tokenizers import is_own_model
    from ..seeing.analysis import Patterns
    from ..seeing.capture.huggingface_text_model import load_text_model
    from ..seeing.corpus import Process, progress_bar, run_corpus, weights_digest
    from ..seeing.drawing.head_report import best_heads_table, label_table
    from ..seeing.drawing.matplotlib_figures import check_figure_path, save_head_maps
    from ..seeing.result_table import check_table_path

    if save_plot is not None:
        check_figure_path(save_plot)
    if save_table is not None:
        check_table_path(save_table)
    if is_own_model(model):
        raise ValueError(f"{model} translates; patterns are about models that read one text. See it with: regard see")
    process = Process.from_environment()
    text_model = load_text_model(model, find_device(device, process.local), trust_remote_code=trust_remote_code)
    if text_model.is_encoder_decoder:
        raise ValueError(f"{model} is an encoder-decoder; patterns are about models that read one text")
    text_model.max_length = min(text_model.max_length, length)
    console, lines = Console(), text_or_lines(text, texts)

    def add(sums: Sums, number: int) -> None:
        read = text_model.encode(lines[number])
        seen = text_model.read(read)
        if not len(seen):
            raise ValueError(f"{model}: {seen.advice}")
        if seen.unproven and number == 0:
            reasons = ", ".join(dict.fromkeys(call.fidelity().remark for call in seen.unproven))
            console.print(f"{len(seen.unproven)} of {len(seen)} calls are shown without a measured fidelity: {reasons}")
        if seen.faithful is False:
            console.print(seen)
            raise ValueError("the weights are not what the model computed (see the table), so patterns are not scored")
        Patterns(sums=sums).add(seen, read, number=number)

    settings = {
        "analysis": "patterns",
        "model": model,
        "weights": weights_digest(text_model.model),
        "regard": __version__,
        "length": length,
        "texts": digest(lines),
    }
    sums = run_corpus(len(lines), add, state, settings, process=process, progress=progress_bar("texts", process))
    if sums is None:  # another process prints the result
        return
    all_patterns = Patterns(sums=sums)
    console.print(label_table(all_patterns))
    console.print("")
    console.print(best_heads_table(all_patterns))
    share = all_patterns.sink_share()
    console.print(
        f"\n{count_of(all_patterns.texts, 'text')}; {share:.0%} of the heads give the first token over 0.3: sinks"
    )
    if save_table is not None:
        all_patterns.table().save(save_table)
        console.print(f"wrote {save_table}", markup=False)
    if save_plot is not None:
        names = [name for name in PLOTTED if name in all_patterns.heads()[0].scores]
        save_head_maps(save_plot, {name: all_patterns.scores(name) for name in names})
        console.print(f"wrote {save_plot}", markup=False)
