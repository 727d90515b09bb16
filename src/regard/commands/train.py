"""Training and its results: `regard train`, `evaluate`, `compare`, `recipes`, `break`."""

from __future__ import annotations

import atexit
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .app import (
    Beams,
    CoveragePenalty,
    Device,
    EngineName,
    LengthPenalty,
    PairColumns,
    Precision,
    Tokens,
    app,
    check_outputs,
    find_device,
    output_console,
    search_settings,
)

if TYPE_CHECKING:
    from ..decoding.load_model_and_tokenizers import Pretrained
    from ..training.recipe_files import Switch
    from ..training.run import Run


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
    from ..training.distributed import ignore_signals
    from ..training.fitting import fit
    from ..training.run import RECIPE, Run

    try:
        if resume is not None:
            chosen = Run.open(resume).recipe
            if changes:
                chosen = recipe_files.load_recipe(resume / RECIPE, changes)
        else:
            chosen = recipe_files.load_recipe(recipe or "", settings or [])
    except RecipeError as error:  # one line each; main() would make one line of them all
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    folder = resume or out or Path("runs") / f"{chosen.name}-{chosen.seed}"
    fit(chosen, folder, resume=resume is not None, force=force)
    # Python and PyTorch take a moment to shut down. The model is saved, so a signal meanwhile changes no exit status.
    atexit.register(ignore_signals)


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
    from ..data.rows import header_remark
    from ..decoding import load_model_and_tokenizers
    from ..files import write_text
    from ..training import results
    from ..training.evaluation import (
        TaskEvaluation,
        default_columns,
        evaluate_loaded,
        pairs_of_file,
        pairs_of_run,
        parse_columns,
        trained_columns,
    )
    from ..training.results import evaluation_tables, save_length_curves

    check_outputs(save_plot)
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
        data: str
        pairs, tokenised, data = pairs_of_run(loaded, split)
        if data == "valid" and split is None:
            typer.echo("regard: this text has no test split, so the one that chose the weights is read", err=True)
            typer.echo("regard: data.tested = 0.05 keeps a share apart; or give a FILE", err=True)
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
            files.append(results.save_result(loaded.run, name, evaluation, digest))
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


@app.command()
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs that were evaluated, or of models in them.")
    ],
    data: Annotated[str | None, typer.Option(metavar="NAME", help="Only scores on this data, e.g. test.")] = None,
    save_plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw BLEU by sentence length, a line per run that translates."),
    ] = None,
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
    from ..training import results
    from ..training.evaluation import TranslationEvaluation
    from ..training.results import comparison_tables, run_tables, save_length_curves

    check_outputs(save_plot)

    def remark(message: str) -> None:
        typer.echo(f"regard: {message}", err=True)

    evaluated = [run for run in runs if (results.results_folder(run) / results.NAME).is_file()] or runs[:1]
    for run in runs:
        if run not in evaluated:
            remark(f"{run} has no {results.NAME}; make it with: regard evaluate {run}")
    rows = [row for row in results.compare(evaluated, remark) if data in (None, row.data)]
    if not rows:
        raise ValueError(
            "there are no scores to compare" if data is None else f"none of these runs was evaluated on {data}"
        )
    if save_plot is not None:
        translations = [(row, row.evaluation) for row in rows if isinstance(row.evaluation, TranslationEvaluation)]
        if not translations:
            raise ValueError("--save-plot draws BLEU by sentence length, and none of these runs translates")
        if len({row.data for row, _ in translations}) > 1:
            raise ValueError("these runs were evaluated on several things; choose one to plot with --data")
        save_length_curves(save_plot, {row.run: scores for row, scores in translations})
    for table in comparison_tables(rows):
        output_console().print(table)
    for table in run_tables(runs):
        output_console().print(table)
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
    if name is not None and name in architectures | corpora:
        typer.echo(recipe_files.part_toml(name), nl=False)
        return
    if name is not None:
        from ..training.recipe import recipe_toml

        typer.echo(recipe_toml(recipe_files.load_recipe(name)), nl=False)
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
    typer.echo('\nArchitectures: a recipe for a corpus of your own says base = ["NAME"] and has a [data] section')
    for base, about in architectures.items():
        typer.echo(f"  {base:<{width}}  {about}")
    typer.echo('\nCorpora: a recipe for a model of your own says base = ["NAME"] and has the sections of the model')
    for base, about in corpora.items():
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
    save_plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw both learning curves: .png, .svg or .pdf.")
    ] = None,
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
    from ..training.recipe_sections import RecipeError

    if part is None:
        for name, switch in switches().items():
            typer.echo(f"{name:<10} {switch.about} ({switch.recipe}, {' '.join(switch.off)})")
        return
    if part not in switches():
        raise ValueError(f"there is no part {part!r} to leave out; there are {', '.join(switches())}")
    check_outputs(save_plot)
    from ..training.fitting import fit
    from ..training.loop import DivergedError
    from ..training.run import Run

    switch, runs, diverged = switches()[part], dict[str, Run](), dict[str, str]()
    try:
        recipes = {name: switch.load(broken=name == "broken", settings=settings or []) for name in ("whole", "broken")}
    except RecipeError as error:
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    for name, recipe in recipes.items():
        folder = out / f"{part}-{name}"
        try:
            runs[name] = fit(recipe, folder, force=force)
        except DivergedError as error:
            runs[name], diverged[name] = Run.open(folder), error.reason
    _report(switch, runs, diverged, save_plot)


def _report(switch: Switch, runs: dict[str, Run], diverged: dict[str, str], save_plot: Path | None) -> None:
    """`diverged` says what was not finite, by the name of the run."""
    from ..seeing.figures import save_curves
    from ..training.run import learning_curve
    from ..training.tasks import recipe_task

    labels = {"whole": "whole", "broken": " ".join(switch.off)}
    own = recipe_task(runs["whole"].recipe).column
    columns = ["valid_nll", *([] if own == "valid_loss" else [own])]  # the loss of a language model is its nll
    curves = {name: {column: learning_curve(run.metrics, column) for column in columns} for name, run in runs.items()}
    for name in runs:
        ends = [
            f"{column} {points[-1][1]:.3f}" if points else f"{column} never finite"
            for column, points in curves[name].items()
        ]
        if name in diverged:
            typer.echo(f"{labels[name]}: diverged, {diverged[name]}; before that: " + ", ".join(ends))
            labels[name] += " (diverged)"
            continue
        typer.echo(f"{labels[name]}: " + ", ".join(ends))
        if switch.generates:
            nll, text = _generation(runs[name])
            typer.echo(f"  token by token: valid_nll {nll:.3f}; writes: {text!r}")
    if save_plot is not None:
        lines = {labels[name]: curves[name]["valid_nll"] for name in runs}  # one without points is in the legend
        values = [value for points in lines.values() for _, value in points] or [1.0]
        wide = min(values) > 0 and max(values) > WIDE * min(values)
        save_curves(save_plot, lines, "update", "loss of the validation set", log_y=wide)
        typer.echo(f"wrote {save_plot}", err=True)


def _generation(run: Run) -> tuple[float, str]:
    """The loss token by token on held-out text, and what the model writes after a prompt."""
    from ..data.batches import AdjacentWindows
    from ..data.encoding import EncodedCorpus
    from ..decoding import load_model_and_tokenizers
    from ..decoding.beam import Sample
    from ..decoding.generation import generate
    from ..training.evaluation import step_by_step_nll

    loaded = load_model_and_tokenizers.load(str(run.folder), "cpu")
    windows = AdjacentWindows(EncodedCorpus.load(run.data / "valid"), block=run.recipe.data.longest, rows=WINDOWS)
    nll = step_by_step_nll(loaded.model, windows[0].target)
    sample = Sample(TEMPERATURE, seed=0)
    pieces = generate(loaded.model, loaded.tokenizers.target, PROMPT, tokens=WRITTEN, sample=sample)
    return nll, PROMPT + "".join(pieces).replace("▁", " ")
