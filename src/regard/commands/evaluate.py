"""`regard evaluate`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .console import output_console
from .shared_options import (
    Beams,
    CoveragePenalty,
    Device,
    EngineName,
    LengthPenalty,
    PairColumns,
    Precision,
    Tokens,
    find_device,
    search_settings,
)
from .typer_app import app

if TYPE_CHECKING:
    from ..decoding.load_model_and_tokenizers import Pretrained

WRITERS = ("translate", "caption", "spell")
TASKS = {  # that an option applies to
    "--columns": (*WRITERS, "classify"),
    "--beams": WRITERS,
    "--length-penalty": WRITERS,
    "--coverage-penalty": WRITERS,
    "--save": (*WRITERS, "classify"),
    "--save-plot": ("translate",),
    "--tokenised": ("translate",),
    "--tokens": ("translate",),
}


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, a model's folder, or one that ships.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Pairs: TSV, CSV, JSONL, Parquet, …; text for a language model. [default: the run's own]",
        ),
    ] = None,
    split: Annotated[
        Literal["test", "valid"] | None, typer.Option(help="Which split of the run's own data. [default: test]")
    ] = None,
    columns: PairColumns = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="The text of the file is tokenised already.")] = False,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model's output for each source, a line each.")
    ] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw a translator's BLEU by sentence length: .png, .svg or .pdf."),
    ] = None,
    engine: EngineName = "torch",
    precision: Precision = "float32",
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Score a model: a translator by BLEU, chrF, perplexity, alignment and speed, others by the metrics of their task.

    Without a file, the test split of the run's recipe is used. Of a file with the columns that the recipe names or
    numbers, these are read; of others the first two. If the data have gold alignment links, the alignment
    error rate is computed. The scores of a run are kept in its results.json, for `regard compare`. A model that a run
    had before it was extended, RUN/model-UPDATES, is scored with the recipe of the run.

    \b
    Examples:
      regard evaluate runs/bahdanau-phrasebook-1
      regard evaluate runs/transformer-multi30k-1 --beams 1 --save-plot lengths.png
      regard evaluate tatoeba-transformer-en-fr pairs.tsv
      regard evaluate runs/luong-dot-tatoeba-1 hansards.tsv --columns 0,1,2,3 --tokenised
      regard evaluate runs/soft-scenes-1
      regard evaluate runs/lstm-phrases-1 my.txt
      regard evaluate runs/birds/model-300
    """
    from ..atomic_write import write_text
    from ..data.row_readers import header_remark
    from ..decoding import load_model_and_tokenizers
    from ..training.run import results_file
    from ..training.score.evaluation import (
        TaskEvaluation,
        default_columns,
        evaluate_loaded,
        pairs_of_file,
        pairs_of_run,
        parse_columns,
        trained_columns,
    )
    from ..training.score.score_tables import evaluation_tables, save_length_curves

    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise ValueError(f"--save {save} cannot be written: give a file in a folder that exists")
    if file is None and (tokenised or columns is not None):
        raise ValueError("--columns and --tokenised describe a FILE, and none is given")
    if file is not None and split is not None:
        raise ValueError("--split chooses among the run's own data; leave it out, or the FILE")
    options = {
        "--columns": columns,
        "--beams": beams,
        "--length-penalty": length_penalty,
        "--coverage-penalty": coverage_penalty,
        "--save": save,
        "--save-plot": save_plot,
        "--tokenised": tokenised or None,
        "--tokens": tokens,
    }
    loaded = load_model_and_tokenizers.load(run, find_device(device), engine, precision=precision)
    digest = loaded.weights_sha256  # now: the model of a run may be replaced while it is evaluated
    task = loaded.model.task
    for option, value in options.items():
        if value is not None and task not in TASKS[option]:
            raise ValueError(
                f"{option} is for models that {' or '.join(TASKS[option])}; "
                f"{run} is one for `regard {load_model_and_tokenizers.COMMANDS.get(task, task)}`"
            )
    if task != "translate" and loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without its run, which says how it is scored; give the run")
    settings = search_settings(loaded, beams, length_penalty, coverage_penalty)
    if file is None:
        data: str = split or "test"
        pairs, tokenised = pairs_of_run(loaded, split or "test")
    else:
        # By its path: other files may have its name, and the run's own splits are called test and valid.
        data = f"./{file}" if str(file) in ("test", "valid") else str(file)
        chosen = parse_columns(columns)
        if columns is None and task != "write" and (trained := default_columns(loaded, file)) != chosen:
            chosen, names = trained, " and ".join(map(str, trained[:2]))
            typer.echo(f"regard: columns {names} of {file} are read, as in training; --columns names others", err=True)
        pairs = pairs_of_file(file, task, chosen)
        trained_names = [name for name in trained_columns(loaded) if isinstance(name, str)]
        if task != "write" and (remark := header_remark(pairs[0], chosen, "--columns {},{}", trained_names)):
            typer.echo(f"regard: {remark}", err=True)
    evaluation, texts = evaluate_loaded(loaded, pairs, settings, tokens=tokens, tokenised=tokenised)
    # Files are written before anything is printed: with `| head` the process ends there. If one cannot be written, the
    # scores are printed all the same.
    files, write_error = [], None
    try:
        if save is not None:
            write_text(save, "".join(f"{text}\n" for text in texts))
            files.append(save)
        if save_plot is not None and not isinstance(evaluation, TaskEvaluation):
            save_length_curves(save_plot, {_label(loaded, run): evaluation})
            files.append(save_plot)
        if loaded.run is not None:
            how: list[str] = [precision if engine == "torch" else engine]
            if loaded.update is not None:  # the run is not finished
                how.append(f"update {loaded.update}")
            variant = ", ".join(each for each in how if each != "float32")
            name = f"{data} ({variant})" if variant else data
            files.append(results_file.save_result(loaded.run, name, evaluation, digest))
    except OSError as error:
        write_error = error
    console = output_console()
    for table in evaluation_tables(data, evaluation, tokenised):
        console.print(table)
    for path in files:
        typer.echo(f"wrote {path}")
    if write_error is not None:
        raise write_error


def _label(loaded: Pretrained, name: str) -> str:
    """The name of a model in a plot: that of its run, with that of an earlier model in it."""
    from ..decoding.load_model_and_tokenizers import is_earlier

    if loaded.run is None:
        return name
    run, model = loaded.run.resolve(), loaded.folder.resolve()
    return f"{run.name}/{model.name}" if is_earlier(model) else run.name
