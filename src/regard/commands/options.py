"""Options and arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
