"""`regard evaluate`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..files import write_text
from .console import screen
from .options import Beams, CoveragePenalty, Device, EngineName, LengthPenalty, Tokens, find_device, settings
from .typer_app import app

if TYPE_CHECKING:
    from rich.table import Table

    from ..data import Pair
    from ..decoding.pretrained import Pretrained
    from ..decoding.search import Settings
    from ..training.score.label_scores import LabelScore
    from ..training.score.task_evaluation import TaskEvaluation
    from ..training.score.translation_evaluation import TranslationEvaluation

LABELS, MATRIX = 30, 10  # so many labels are listed, and so many at most have a table of what was taken for what
WRITERS = ("translate", "caption", "spell")
TASKS = {  # that an option means something to
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
        Literal["test", "valid"] | None, typer.Option(help="Which of the run's own pairs. [default: test]")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Of the file: source, target, and perhaps sure and possible links; numbers or names. [default: 0,1]"
        ),
    ] = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="The file's text is split by spaces already.")] = False,
    beams: Beams = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what the model says to each source, a line each.")
    ] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw a translator's BLEU by sentence length: .png, .svg or .pdf."),
    ] = None,
    engine: EngineName = "torch",
    device: Device = "auto",
    tokens: Tokens = None,
) -> None:
    """Score a model: a translator by BLEU, chrF, perplexity, alignments and speed, others by what their task measures.

    Without a file, on the test pairs of the run's recipe. Gold alignment links, where there are some, give the
    alignment error rate. A run keeps what it scored in results.json, for `regard compare`.

    \b
    Examples:
      regard evaluate runs/bahdanau-phrasebook-1
      regard evaluate runs/transformer-multi30k-1 --beams 1 --save-plot lengths.png
      regard evaluate tatoeba-transformer-en-fr pairs.tsv
      regard evaluate runs/luong-dot-tatoeba-1 hansards.tsv --columns 0,1,2,3 --tokenised
      regard evaluate runs/soft-scenes-1
      regard evaluate runs/lstm-phrases-1 my.txt
    """
    from ..decoding import pretrained
    from ..training.run import results_file
    from ..training.score.task_evaluation import TaskEvaluation
    from ..training.score.translation_evaluation import evaluate_translation

    if save_plot is not None:
        from ..seeing.drawing import check_figure_path

        check_figure_path(save_plot)
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise ValueError(f"--save {save} cannot be written: give a file in a folder that is there")
    if file is None and (tokenised or columns is not None):
        raise ValueError("--columns and --tokenised say how a FILE is written, and none is given")
    if file is not None and split is not None:
        raise ValueError("--split chooses among the run's own pairs; leave it out, or the FILE")
    given = {
        "--columns": columns,
        "--beams": beams,
        "--length-penalty": length_penalty,
        "--coverage-penalty": coverage_penalty,
        "--save": save,
        "--save-plot": save_plot,
        "--tokenised": tokenised or None,
        "--tokens": tokens,
    }
    where = find_device(device)
    loaded = pretrained.load(run, where, engine)
    task = loaded.model.task
    for option, asked in given.items():
        if asked is not None and task not in TASKS[option]:
            raise ValueError(
                f"{option} is for models that {' or '.join(TASKS[option])}; "
                f"{run} is one for `regard {pretrained.COMMANDS[task]}`"
            )
    if task != "translate" and loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without its run, which says how it is scored; give the run")
    how = settings(loaded, beams, length_penalty, coverage_penalty)
    if file is None:
        data, pairs, tokenised = _own(loaded, split or "test")
    else:
        # By its path: other files may have its name, and the run's own splits are called test and valid.
        data = f"./{file}" if str(file) in ("test", "valid") else str(file)
        pairs = _given(file, task, columns or "0,1")
    evaluation: TranslationEvaluation | TaskEvaluation
    if task == "translate":
        evaluation, texts = evaluate_translation(
            loaded.model, loaded.tokenizers, pairs, tokens=tokens, tokenised=tokenised, **how
        )
    else:
        evaluation, texts = _figures(loaded, pairs, how)
    # Everything is kept before anything is shown: who pipes the table into `head` ends the program there. What cannot
    # be kept is no reason to lose what was computed.
    files, lost = [], None
    try:
        if save is not None:
            files.append(_save(texts, save))
        if save_plot is not None and not isinstance(evaluation, TaskEvaluation):
            plot({loaded.run.name if loaded.run else run: evaluation}, save_plot)
            files.append(save_plot)
        if loaded.run is not None:
            name = data if engine == "torch" else f"{data} ({engine})"
            files.append(results_file.save_result(loaded.run, name, evaluation))
    except OSError as error:
        lost = error
    if isinstance(evaluation, TaskEvaluation):
        _print_figures(data, evaluation)
    else:
        _print(data, evaluation, tokenised)
    for written in files:
        typer.echo(f"wrote {written}")
    if lost is not None:
        raise lost


def _save(texts: list[str], file: Path) -> Path:
    write_text(file, "".join(f"{text}\n" for text in texts))
    return file


def plot(evaluations: dict[str, TranslationEvaluation], file: Path) -> None:
    from ..seeing.drawing import save_curves

    curves = {
        name: [(each.middle, each.bleu) for each in evaluation.by_length] for name, evaluation in evaluations.items()
    }
    save_curves(file, curves, "words of the source sentence", "BLEU")


def _given(file: Path, task: str, columns: str) -> list[Pair]:
    """What a file holds to evaluate on: pairs, or one running text."""
    if task == "write":
        from ..training.trainer.recipe_corpus import running

        return list(running(file))
    from ..data import PairReader

    named = tuple(int(name) if name.strip().isdecimal() else name.strip() for name in columns.split(","))
    if pairs := list(PairReader(file, columns=named)):
        return pairs
    raise ValueError(f"{file} holds no rows, so there is nothing to evaluate on")


def _own(loaded: Pretrained, split: Literal["test", "valid"]) -> tuple[str, list[Pair], bool]:
    """What the run's recipe names: the split, its pairs, and whether their text is tokenised."""
    if loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without a recipe: say which FILE of pairs to evaluate on")
    from ..training.run.run_folder import Run
    from ..training.trainer.recipe_corpus import read

    recipe = Run.open(loaded.run).recipe
    if pairs := list(read(recipe.data, split, recipe.source.kind)):
        return split, pairs, recipe.data.tokenised
    raise ValueError(f"there is nothing to evaluate on: the recipe's data.{split} is empty; give a FILE of pairs")


def _figures(loaded: Pretrained, pairs: list[Pair], how: Settings) -> tuple[TaskEvaluation, list[str]]:
    """Of classifiers, captioners, spellers and language models: the figures, and what was said to each source."""
    from ..training.run.run_folder import Run
    from ..training.score.task_evaluation import evaluate_task
    from ..training.tasks import recipe_task

    assert loaded.run is not None
    recipe = Run.open(loaded.run).recipe
    asked = recipe.model_copy(update={"search": recipe.search.model_copy(update=dict(how))})
    return evaluate_task(recipe_task(asked), loaded.model, loaded.tokenizers, pairs)


def _searched(search: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in search.items())


def _print_figures(data: str, found: TaskEvaluation) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in found.values.items():
        table.add_row(name, f"{value:.4f}" if name == "loss" else f"{value:.2f}")
    console = screen()
    how = f", {_searched(found.search)}" if found.search else ""
    console.print(f"{data}: {found.amount}{how}", style="bold")
    console.print(table)
    if found.labels:
        _print_labels(found.labels)


def _print_labels(labels: dict[str, LabelScore]) -> None:
    """How each label fares; and of few, what was taken for what."""
    table = _columns("label", "rows", "precision", "recall", "F1")
    most = sorted(labels, key=lambda name: -labels[name].count)[:LABELS]
    for name in [name for name in labels if name in most]:
        one = labels[name]
        shares = ("–" if share is None else f"{share:.2f}" for share in (one.precision, one.recall, one.f1))
        table.add_row(name, f"{one.count:,}", *shares)
    console = screen()
    console.print()
    console.print(table)
    if len(labels) > LABELS:
        console.print(f"the {LABELS} labels with most rows; all {len(labels):,} are in results.json")
    if len(labels) > MATRIX:
        return
    matrix = _columns("label", *labels)
    for name, one in labels.items():
        matrix.add_row(name, *(f"{one.answers.get(other, 0):,}" for other in labels))
    console.print("\nrows of each label, by what the model answered", style="bold")
    console.print(matrix)


def _columns(first: str, *numbers: str) -> Table:
    from rich.table import Table

    table = Table(first, *numbers, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _print(data: str, evaluation: TranslationEvaluation, tokenised: bool) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows = [
        ("BLEU", f"{evaluation.bleu.value:.2f}", evaluation.bleu.signature),
        ("tokenised BLEU", f"{evaluation.tokenised_bleu.value:.2f}", evaluation.tokenised_bleu.signature),
        ("chrF", f"{evaluation.chrf.value:.2f}", evaluation.chrf.signature),
    ]
    if evaluation.perplexity is not None:
        rows.append(("perplexity", f"{evaluation.perplexity:.2f}", "per token of the model's vocabulary"))
    best = evaluation.best_aer
    rows += [
        ("AER" if layer == "attention" else f"AER, {layer}", f"{value:.3f}", "best" if value == best else "")
        for layer, value in evaluation.aer.items()
    ]
    speed = f"{evaluation.tokens_per_second:,.0f}"
    rows.append(("speed", speed, f"tokens per second, {_searched(evaluation.search)}"))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")  # a signature is whole or useless
    for row in rows:
        table.add_row(*row)
    lengths = _columns("words", "sentences", "BLEU")
    lengths.columns[0].justify = "right"
    for each in evaluation.by_length:
        lengths.add_row(each.name, f"{each.sentences:,}", f"{each.bleu:.2f}")
    console = screen()
    console.print(f"{data}: {evaluation.sentences:,} sentences in {evaluation.seconds:.1f} s", style="bold")
    console.print(table)
    kind = "tokenised BLEU" if tokenised else "BLEU"
    console.print(f"\n{kind} by length of the source", style="bold")
    console.print(lengths)
