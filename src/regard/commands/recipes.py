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
    from ..training.recipe import recipe_loader, recipe_parts
    from ..training.recipe.recipe_writer import recipe_toml

    architectures, corpora = recipe_parts.architectures(), recipe_parts.corpora()
    if name is not None and name in architectures | corpora:
        typer.echo(recipe_parts.part_toml(name), nl=False)
        return
    if name is not None:
        typer.echo(recipe_toml(recipe_loader.load_recipe(name)), nl=False)
        return
    shipped, tasks = recipe_loader.recipe_summaries(), recipe_loader.recipe_tasks()
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
