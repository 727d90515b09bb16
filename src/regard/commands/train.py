"""`regard train`."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Annotated

import typer

from .typer_app import app


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
    from ..training.distributed import ignore_signals
    from ..training.fitting import fit
    from ..training.recipe import recipe_loader
    from ..training.recipe.recipe_errors import RecipeError
    from ..training.run.run_folder import RECIPE, Run

    try:
        if resume is not None:
            chosen = Run.open(resume).recipe
            if changes:
                chosen = recipe_loader.load_recipe(resume / RECIPE, changes)
        else:
            chosen = recipe_loader.load_recipe(recipe or "", settings or [])
    except RecipeError as error:  # one line each; main() would make one line of them all
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    folder = resume or out or Path("runs") / f"{chosen.name}-{chosen.seed}"
    fit(chosen, folder, resume=resume is not None, force=force)
    # Python and PyTorch take a moment to shut down. The model is saved, so a signal meanwhile changes no exit status.
    atexit.register(ignore_signals)
