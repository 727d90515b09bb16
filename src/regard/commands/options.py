"""The Typer application, the options that several commands take, and their console."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..decoding.beam import SearchSettings
    from ..decoding.model_folders import Pretrained


class Sorted(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx))


app = typer.Typer(
    cls=Sorted,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        from .. import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    plugins: Annotated[
        str, typer.Option(metavar="PACKAGE,...", help="Packages whose code recipes and models may name.")
    ] = "",
) -> None:
    """Attention you can build with, train with and look at."""
    if plugins:
        from ..plugins import allow_plugins

        allow_plugins(plugins)


def find_device(name: str, local_rank: int = 0) -> str:
    """The name of a device that PyTorch can use here; "auto" is a GPU if there is one, "cuda" that of the rank."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local_rank and torch.cuda.is_available():
        name = f"cuda:{local_rank % torch.cuda.device_count()}"
    try:
        torch.zeros(1, device=name).item()  # `item` fails on the device `meta`
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name} cannot be used here: {str(error).splitlines()[0]}") from None
    return name


def search_settings(loaded: Pretrained, beams: int | None) -> SearchSettings:
    """The search settings of the command line, then of the run's recipe, then the defaults."""
    settings: SearchSettings = {"beams": 5, "length_penalty": 1.0, "coverage_penalty": 0.0, **loaded.search}
    if beams is not None:
        settings["beams"] = beams
    return settings


def output_console() -> Console:
    """A console for stdout; into a pipe or a file it is 200 columns wide, so that nothing is truncated or wrapped."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console


def remark(message: str) -> None:
    """A line on standard error."""
    typer.echo(f"regard: {message}", err=True)


def warn_unknown_words(names: Sequence[str], consequence: str, where: str = "") -> None:
    """Nothing where there are none. `where` is the line; `consequence` what the model does with them."""
    if names:
        listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        remark(f"{where}{': ' if where else ''}the model does not know {listed}; {consequence}")


def check_outputs(plot: Path | None, table: Path | None = None) -> None:
    """Refuse the names of a figure and a table that could not be written, before anything is computed."""
    from ..files import check_figure_path, check_table_path

    if plot is not None:
        check_figure_path(plot)
    if table is not None:
        check_table_path(table)


def check_port(host: str, port: int) -> None:
    """Refuse a port that is taken, before anything is loaded."""
    import errno
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:  # any other is said by the server
            if error.errno == errno.EADDRINUSE:
                raise ValueError(
                    f"cannot listen at {host}, port {port}: {error.strerror}; choose another --port"
                ) from None


BEAMS = 1000  # memory grows with beams × vocabulary, and no search gains from more

Model = Annotated[
    str | None, typer.Option("--model", metavar="RUN", help="A run's folder, a model's folder, or one that ships.")
]
ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="minilm, smollm2, a folder, a Hugging Face name, or a translator of regard."),
]
TrainedModel = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's folder, a model's folder, or one that ships.")
]
Second = Annotated[
    str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
]
Beams = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, max=BEAMS, help="Beam size; 1 is greedy. [default: the run's, or 5]"),
]
TopK = Annotated[int, typer.Option(metavar="N", min=0, help="Sample from the N likeliest tokens only; 0: from all.")]
TopP = Annotated[
    float, typer.Option(metavar="P", help="Sample from the likeliest tokens that reach this probability, 0 < P ≤ 1.")
]
Lines = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="Read the lines of this file; .gz and .xz too.")
]
SavePlot = Annotated[
    Path | None, typer.Option("--save-plot", metavar="FILE.png", help="Draw a figure: .png, .svg or .pdf.")
]
SaveTable = Annotated[
    Path | None, typer.Option("--save-table", metavar="FILE.csv", help="Write all values: .csv or .parquet.")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0: all addresses.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.")]
EngineName = Annotated[
    Literal["torch", "ctranslate2"],
    typer.Option("--engine", help="What runs the model; ctranslate2 after `regard export`."),
]
Precision = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option("--precision", help="Of a translator's weights and products; bfloat16 reads half as many bytes."),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that the model brings along. It can do all that you can: for trusted authors.",
    ),
]
PairColumns = Annotated[
    str | None,
    typer.Option(help="Columns of the file: source, target, sure and possible links; numbers or names. [default: 0,1]"),
]
StateFolder = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FOLDER",
        help="Save sums here every half minute. The same command continues a run that was killed, and under torchrun "
        "every process adds its share.",
    ),
]
