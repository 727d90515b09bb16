"""`regard break`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .typer_app import app

if TYPE_CHECKING:
    from ..training.recipe.switches import Switch
    from ..training.run.run_folder import Run

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
    from ..training.recipe.recipe_errors import RecipeError
    from ..training.recipe.switches import SWITCHES

    if part is None:
        for name, switch in SWITCHES.items():
            typer.echo(f"{name:<10} {switch.about} ({switch.recipe}, {' '.join(switch.off)})")
        return
    if part not in SWITCHES:
        raise ValueError(f"there is no part {part!r} to leave out; there are {', '.join(SWITCHES)}")
    if save_plot is not None:
        from ..seeing.drawing.matplotlib_figures import check_figure_path

        check_figure_path(save_plot)
    from ..training.fitting import fit
    from ..training.loop import DivergedError
    from ..training.run.run_folder import Run

    switch, runs, diverged = SWITCHES[part], dict[str, Run](), dict[str, str]()
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
    from ..seeing.drawing.matplotlib_figures import save_curves
    from ..training.run.learning_curve import learning_curve
    from ..training.tasks.task import recipe_task

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
    from ..data import EncodedCorpus
    from ..data.text_windows import AdjacentWindows
    from ..decoding import load_model_and_tokenizers
    from ..decoding.sampling import Sample
    from ..decoding.text_generation import generate
    from ..training.score.step_by_step_loss import step_by_step_nll

    loaded = load_model_and_tokenizers.load(str(run.folder), "cpu")
    windows = AdjacentWindows(EncodedCorpus.load(run.data / "valid"), block=run.recipe.data.longest, rows=WINDOWS)
    nll = step_by_step_nll(loaded.model, windows[0].target)
    sample = Sample(TEMPERATURE, seed=0)
    pieces = generate(loaded.model, loaded.tokenizers.target, PROMPT, tokens=WRITTEN, sample=sample)
    return nll, PROMPT + "".join(pieces).replace("▁", " ")
