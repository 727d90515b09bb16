"""`regard serve`."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated

import typer

from .shared_options import Device, EngineName, Precision, find_device
from .typer_app import app

TOKEN = "REGARD_TOKEN"
"""The environment variable with the token, for a server whose clients must know it beforehand."""


@app.command()
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a model's folder, or one that ships.")],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0: all addresses.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")] = 8400,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Texts computed together, at most.")] = 64,
    wait: Annotated[
        float,
        typer.Option(metavar="MS", min=0.0, max=1000.0, help="Milliseconds that a text waits for others, at most."),
    ] = 5.0,
    queue: Annotated[
        int, typer.Option(metavar="N", min=1, help="Texts that may wait; more are refused with status 503.")
    ] = 1024,
    token: Annotated[
        bool,
        typer.Option("--token/--no-token", help=f"Ask for a token: that of {TOKEN}, or a new one, which is printed."),
    ] = True,
    engine: EngineName = "torch",
    precision: Precision = "float32",
    device: Device = "auto",
) -> None:
    """Serve a translator or a text classifier over HTTP, computing the texts of many requests together.

    POST /translate or /classify takes {"texts": [...], "alignment": true}. GET /openapi.json describes the API; /health
    needs no token, /metrics is for Prometheus. Ctrl-C stops it.

    \b
    Examples:
      regard serve tatoeba-transformer-en-fr
      REGARD_TOKEN=secret regard serve runs/mine --host 0.0.0.0 --port 80
      regard serve runs/mine --engine ctranslate2 --batch 128 --wait 10
    """
    from ..serving.serve_application import create_serve_app
    from ..serving.served_model import ServedModel
    from ..viewer.http.server import AppServer

    served = ServedModel(model, find_device(device), engine, precision)
    make = partial(create_serve_app, served, batch=batch, wait=wait / 1000, queue=queue)
    secret = os.environ.get(TOKEN) or True
    server = AppServer(make, host, port, token=secret if token else False)
    typer.echo(f"regard serve: {server.address}/{served.task}")
    if server.token is not None:
        typer.echo(f"token: that of {TOKEN}" if secret is not True else f"Authorization: Bearer {server.token}")
    typer.echo("Ctrl-C ends it")
    server.run()
