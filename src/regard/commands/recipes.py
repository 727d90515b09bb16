"""`regard recipes`."""

from __future__ import annotations

from typing import Annotated

import typer

from .typer_app import app

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
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this recipe in full.")] = None,
) -> None:
    """List the recipes that ship, or print one in full with every key explained.

    The output is a recipe itself: save it, change it, and give the file to `regard train`. A recipe may also say
    base = ["bahdanau-multi30k"] and hold only what it changes.

    \b
    Examples:
      regard recipes
      regard recipes transformer-multi30k > mine.toml
    """
    from ..training.recipe import recipe_loader
    from ..training.recipe.recipe_writer import recipe_toml

    if name in recipe_loader.architectures():
        raise ValueError(
            f'{name} is no recipe but what one is based on: write base = ["{name}"] and a [data] section into a file '
            "of your own; `regard recipes` lists whole ones"
        )
    if name is not None:
        typer.echo(recipe_toml(recipe_loader.load_recipe(name)), nl=False)
        return
    shipped, tasks = recipe_loader.recipe_summaries(), recipe_loader.recipe_tasks()
    width = max(map(len, shipped))
    for task, heading in HEADINGS.items():
        typer.echo(heading)
        for recipe, about in shipped.items():
            does, _, data = tasks[recipe].partition(" ")
            if does == task:
                typer.echo(f"{'*' if data in EMBEDDED else ' '} {recipe:<{width}}  {about}")
        typer.echo("")
    typer.echo("* needs no data: regard makes it")
    bases = ", ".join(f'["{name}"]' for name in recipe_loader.architectures())
    typer.echo(
        f"\nA recipe for a corpus of your own says what it is based on, base = {bases}, and has a [data] section."
    )
