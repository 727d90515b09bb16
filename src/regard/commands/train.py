"""Training and its results: `regard train`, `evaluate`, `compare`, `recipes`, `break`."""

from __future__ import annotations

import atexit
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import inputs, options
from .options import app, check_outputs, find_device, output_console, remark, search_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..data.rows import Pair
    from ..decoding.model_folders import Pretrained
    from ..training.run_folder import Run


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A name from `regard recipes`, or a .toml file.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the recipe: training.rate=0.001"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run's folder. [default: runs/NAME-SEED]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing run.")] = False,
) -> None:
    """Train a model from a recipe: a translator, a language model, a classifier, a captioner or a speller.

    The run's folder gets recipe.toml (in full), metrics.csv, checkpoints/ and, at the end, model/, which `regard
    translate --model` takes (or generate, classify, caption). --resume continues an interrupted run with the same
    batches, and on a CPU with bit-identical losses; with KEY=VALUE it continues with other settings, such as more
    updates. Ctrl-C, SIGTERM and SIGUSR1 end a run after its current update, which is saved. For several devices set
    training.devices (per node) and training.nodes; torchrun and Slurm must start as many processes.

    \b
    Examples:
      regard train bahdanau-phrasebook
      regard train soft-scenes
      regard train transformer-multi30k seed=2 data.columns=[0,2] --out runs/en-fr
      regard train --resume runs/en-fr
      regard train --resume runs/en-fr training.updates=20000
      regard train mine.toml training.init=tatoeba-transformer-en-fr 'training.freeze=["encoder.embedding"]'
    """
    changes = [*([recipe] if recipe is not None else []), *(settings or [])]
    if resume is not None and (out is not None or force or not all("=" in change for change in changes)):
        raise typer.BadParameter("--resume continues a run with its own recipe; it takes KEY=VALUE and nothing else")
    if resume is None and recipe is None:
        raise typer.BadParameter("give a recipe, or --resume with a run; `regard recipes` lists what ships")
    from ..training import recipe_files
    from ..training.recipe_sections import RecipeError

    if resume is None:
        with suppress(RecipeError):  # all errors of a recipe are reported together, below
            recipe_files.require_files(recipe or "", settings or [])
    elif not resume.is_dir():
        raise ValueError(f"{resume} is no run: there is no such folder")
    from ..training.devices import ignore_signals
    from ..training.fitting import fit
    from ..training.run_folder import RECIPE, Run

    with recipe_errors():
        if resume is None:
            chosen = recipe_files.load_recipe(recipe or "", settings or [])
        else:
            chosen = Run.open(resume).recipe
            if changes:
                chosen = recipe_files.load_recipe(resume / RECIPE, changes)
    folder = resume or out or Path("runs") / f"{chosen.name}-{chosen.seed}"
    fit(chosen, folder, resume=resume is not None, force=force)
    # Python and PyTorch take a moment to shut down. The model is saved, so a signal meanwhile changes no exit status.
    atexit.register(ignore_signals)


@contextmanager
def recipe_errors() -> Iterator[None]:
    """Prints the problems of a recipe, one line each; `main` would make one line of them all."""
    from ..training.recipe_sections import RecipeError

    try:
        yield
    except RecipeError as error:
        remark(str(error))
        raise typer.Exit(1) from None


WRITERS = ("translate", "caption", "spell")
TASKS = {  # that an option applies to
    "--columns": (*WRITERS, "classify"),
    "--beams": WRITERS,
    "--save": (*WRITERS, "classify"),
    "--save-plot": ("translate",),
    "--tokenised": ("translate",),
}


@app.command()
def evaluate(
    run: options.TrainedModel,
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
    columns: options.PairColumns = None,
    tokenised: Annotated[bool, typer.Option("--tokenised", help="The text of the file is tokenised already.")] = False,
    beams: options.Beams = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model's output for each source, a line each.")
    ] = None,
    save_plot: options.SavePlot = None,
    engine: options.EngineName = "torch",
    precision: options.Precision = "float32",
    device: options.Device = "auto",
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
    check_outputs(save_plot)
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise ValueError(f"--save {save} cannot be written: give a file in a folder that exists")
    if file is None and (tokenised or columns is not None):
        raise ValueError("--columns and --tokenised describe a FILE, and none is given")
    if file is not None and split is not None:
        raise ValueError("--split chooses among the run's own data; leave it out, or the FILE")
    inputs.require_there(file)
    from ..decoding import model_folders
    from ..decoding.model_folders import is_earlier
    from ..files import write_text
    from ..training import results
    from ..training.evaluation import TaskEvaluation, evaluate_loaded, pairs_of_run

    loaded = model_folders.load(run, find_device(device), engine, precision=precision)
    digest = loaded.weights_sha256  # now: the model of a run may be replaced while it is evaluated
    given = {
        "--columns": columns is not None,
        "--beams": beams is not None,
        "--save": save is not None,
        "--save-plot": save_plot is not None,
        "--tokenised": tokenised,
    }
    task = loaded.model.task
    for option in (name for name, is_given in given.items() if is_given and task not in TASKS[name]):
        command = model_folders.COMMANDS.get(task, task)
        raise ValueError(
            f"{option} is for models that {' or '.join(TASKS[option])}; {run} is one for `regard {command}`"
        )
    if task != "translate" and loaded.run is None:
        raise ValueError(f"{loaded.folder} is a model without its run, which says how it is scored; give the run")
    if file is None:
        data: str
        pairs, tokenised, data = pairs_of_run(loaded, split)
        if data == "valid" and split is None:
            typer.echo("regard: this text has no test split, so the one that chose the weights is read", err=True)
            typer.echo("regard: data.tested = 0.05 keeps a share apart; or give a FILE", err=True)
    else:
        # By its path: other files may have its name, and the run's own splits are called test and valid.
        data = f"./{file}" if str(file) in ("test", "valid") else str(file)
        pairs = _pairs_of_file(loaded, file, columns)
    settings = search_settings(loaded, beams)
    evaluation, texts = evaluate_loaded(loaded, pairs, settings, tokens=None, tokenised=tokenised)
    # Files are written before anything is printed: with `| head` the process ends there. If one cannot be written, the
    # scores are printed all the same.
    files, write_error = [], None
    try:
        if save is not None:
            write_text(save, "".join(f"{text}\n" for text in texts))
            files.append(save)
        if save_plot is not None and not isinstance(evaluation, TaskEvaluation):
            results.save_length_curves(save_plot, {_label(loaded, run): evaluation})
            files.append(save_plot)
        if loaded.run is not None:
            place = loaded.folder if is_earlier(loaded.folder) else loaded.run
            how: list[str] = [precision if engine == "torch" else engine]
            if loaded.update is not None:  # the run is not finished
                how.append(f"update {loaded.update}")
            variant = ", ".join(each for each in how if each != "float32")
            name = f"{data} ({variant})" if variant else data
            files.append(results.save_result(place, name, evaluation, digest))
    except OSError as error:
        write_error = error
    console = output_console()
    for table in results.evaluation_tables(data, evaluation, tokenised):
        console.print(table)
    for path in files:
        typer.echo(f"wrote {path}")
    if write_error is not None:
        raise write_error


def _pairs_of_file(loaded: Pretrained, file: Path, columns: str | None) -> list[Pair]:
    """By the columns that are given, else by those of the training, if the file has them, else the first two."""
    from ..data.rows import header_remark
    from ..training.evaluation import default_columns, pairs_of_file, parse_columns, trained_columns

    task, chosen = loaded.model.task, parse_columns(columns)
    if task == "write":
        return pairs_of_file(file, task, chosen)
    if columns is None and (trained := default_columns(loaded, file)) != chosen:
        chosen, names = trained, " and ".join(map(str, trained[:2]))
        remark(f"columns {names} of {file} are read, as in training; --columns names others")
    pairs = pairs_of_file(file, task, chosen)
    trained_names = [name for name in trained_columns(loaded) if isinstance(name, str)]
    if header := header_remark(pairs[0], chosen, "--columns {},{}", trained_names):
        remark(header)
    return pairs


def _label(loaded: Pretrained, name: str) -> str:
    """The name of a model in a plot: that of its run, with that of an earlier model in it."""
    from ..decoding.model_folders import is_earlier

    if loaded.run is None:
        return name
    run, model = loaded.run.resolve(), loaded.folder.resolve()
    return f"{run.name}/{model.name}" if is_earlier(model) else run.name


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs that were evaluated, or of models in them.")
    ],
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only scores on this data, e.g. test.")] = None,
    save_plot: options.SavePlot = None,
) -> None:
    """Compare evaluated runs in a table.

    `regard evaluate` writes the scores of a run to its results.json; this prints them. Those of a model that the run
    had before it was extended are named RUN/model-UPDATES. Of several runs, the settings that differ and the curves of
    their validations follow.

    \b
    Examples:
      regard compare runs/seq2seq-phrasebook-1 runs/bahdanau-phrasebook-1
      regard compare runs/*-multi30k-1 --save-plot lengths.svg
    """
    check_outputs(save_plot)
    from ..training import results
    from ..training.evaluation import TranslationEvaluation

    rows = [row for row in results.compare(runs, remark) if data in (None, row.data)]
    if not rows:
        raise ValueError(
            "there are no scores to compare; make them with: regard evaluate RUN"
            if data is None
            else f"none of these runs was evaluated on {data}"
        )
    if save_plot is not None:
        translations = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TranslationEvaluation)]
        if not translations:
            raise ValueError("--save-plot draws BLEU by sentence length, and none of these runs translates")
        if len({row.data for row, _ in translations}) > 1:
            raise ValueError("these runs were evaluated on several things; choose one to plot with --data")
        results.save_length_curves(save_plot, {row.run: scores for row, scores in translations})
    for table in results.comparison_tables(rows):
        output_console().print(table)
    for run_table in results.run_tables(runs):
        output_console().print(run_table)
    if save_plot is not None:
        typer.echo(f"wrote {save_plot}")


HEADINGS = {
    "translate": "Translators",
    "write": "Language models",
    "classify": "Classifiers of text and sound",
    "caption": "Captioners of pictures",
    "spell": "Spellers of sound",
}
EMBEDDED = ("phrasebook", "phrases", "opinions", "tones", "scenes")


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this recipe, or base, in full.")] = None,
) -> None:
    """List the recipes that ship and what they are based on, or print one in full with every key explained.

    The output is a recipe itself: save it, change it, and give the file to `regard train`. A recipe may also say
    base = ["bahdanau-multi30k"] and hold only what it changes; or base = ["transformer"], an architecture, and have a
    [data] section for files of your own.

    \b
    Examples:
      regard recipes
      regard recipes transformer-multi30k > mine.toml
      regard recipes transformer
    """
    from ..training import recipe_files

    architectures, corpora = recipe_files.architectures(), recipe_files.corpora()
    if name is not None:
        from ..training.recipe import recipe_toml

        is_part = name in architectures | corpora
        typer.echo(recipe_files.part_toml(name) if is_part else recipe_toml(recipe_files.load_recipe(name)), nl=False)
        return
    shipped, tasks = recipe_files.recipe_summaries(), recipe_files.recipe_tasks()
    width = max(map(len, [*shipped, *architectures, *corpora]))
    for task, heading in HEADINGS.items():
        typer.echo(heading)
        for recipe, about in shipped.items():
            does, _, data = tasks[recipe].partition(" ")
            if does == task:
                typer.echo(f"{'*' if data in EMBEDDED else ' '} {recipe:<{width}}  {about}")
        typer.echo("")
    typer.echo("* needs no data: regard makes it")
    for parts, heading in (
        (
            architectures,
            'Architectures: a recipe for a corpus of your own says base = ["NAME"] and has a [data] section',
        ),
        (corpora, 'Corpora: a recipe for a model of your own says base = ["NAME"] and has the sections of the model'),
    ):
        typer.echo(f"\n{heading}")
        for base, about in parts.items():
            typer.echo(f"  {base:<{width}}  {about}")


WINDOWS = 32  # of held-out text that is read token by token
WIDE = 20  # losses that differ by more than this factor are drawn on a logarithmic scale
PROMPT, WRITTEN, TEMPERATURE = "the ", 60, 0.5  # what is generated: a prompt, and so many sampled tokens


@app.command("break")
def break_it(
    part: Annotated[
        str | None,
        typer.Argument(metavar="PART", help="positions, norm, residual, scaling, mask or heads; without it, a list."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of both recipes: training.updates=100"),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="The two runs are written to FOLDER/PART-whole and FOLDER/PART-broken."),
    ] = Path("runs/break"),
    save_plot: options.SavePlot = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing runs.")] = False,
) -> None:
    """Train a small Transformer whole and without one of its parts, and compare the two.

    Each takes about a minute on one CPU thread. Both runs have the same data, seed and number of updates; they are
    ordinary runs, so that `regard see`, `regard evaluate` and the other commands take them. Where training diverges,
    that is the result: there is no model then.

    \b
    Examples:
      regard break
      regard break positions --save-plot positions.png
      regard break norm encoder.layers=24
    """
    from ..training.recipe_files import switches

    if part is None:
        for name, switch in switches().items():
            typer.echo(f"{name:<10} {switch.about} ({switch.recipe}, {' '.join(switch.off)})")
        return
    if part not in switches():
        raise ValueError(f"there is no part {part!r} to leave out; there are {', '.join(switches())}")
    check_outputs(save_plot)
    from ..training.fitting import fit
    from ..training.loop import DivergedError
    from ..training.run_folder import Run

    switch, labels, lines = switches()[part], {"whole": "whole", "broken": " ".join(switches()[part].off)}, {}
    with recipe_errors():
        recipes = {name: switch.load(broken=name == "broken", settings=settings or []) for name in labels}
    for name, recipe in recipes.items():
        folder, diverged = out / f"{part}-{name}", ""
        try:
            run = fit(recipe, folder, force=force)
        except DivergedError as error:
            run, diverged = Run.open(folder), error.reason
        lines[labels[name] + (" (diverged)" if diverged else "")] = _report(run, labels[name], diverged)
        if switch.generates and not diverged:
            nll, text = _generation(run)
            typer.echo(f"  token by token: valid_nll {nll:.3f}; writes: {text!r}")
    if save_plot is not None:
        from ..seeing.figures import save_curves

        values = [value for points in lines.values() for _, value in points] or [1.0]
        wide = min(values) > 0 and max(values) > WIDE * min(values)
        save_curves(save_plot, lines, "update", "loss of the validation set", log_y=wide)
        typer.echo(f"wrote {save_plot}", err=True)


def _report(run: Run, label: str, diverged: str) -> Sequence[tuple[float, float]]:
    """Print where the losses of a run end, and what was not finite; gives those of the validation set."""
    from ..training.run_folder import learning_curve
    from ..training.tasks import recipe_task

    columns = dict.fromkeys(["valid_nll", recipe_task(run.recipe).column])
    columns.pop("valid_loss", None)  # of a language model; it is its nll
    curves = {column: learning_curve(run.metrics, column) for column in columns}
    ends = ", ".join(
        f"{name} {points[-1][1]:.3f}" if points else f"{name} never finite" for name, points in curves.items()
    )
    typer.echo(f"{label}: " + (f"diverged, {diverged}; before that: " if diverged else "") + ends)
    return curves["valid_nll"]


def _generation(run: Run) -> tuple[float, str]:
    """The loss token by token on held-out text, and what the model writes after a prompt."""
    from ..data.batches import AdjacentWindows
    from ..data.encoding import EncodedCorpus
    from ..decoding import model_folders
    from ..decoding.beam import Sample
    from ..decoding.generation import generate
    from ..training.evaluation import step_by_step_nll

    loaded = model_folders.load(str(run.folder), "cpu")
    windows = AdjacentWindows(EncodedCorpus.load(run.data / "valid"), block=run.recipe.data.longest, rows=WINDOWS)
    nll = step_by_step_nll(loaded.model, windows[0].target)
    sample = Sample(TEMPERATURE, seed=0)
    pieces = generate(loaded.model, loaded.tokenizers.target, PROMPT, tokens=WRITTEN, sample=sample)
    return nll, PROMPT + "".join(pieces).replace("▁", " ")
