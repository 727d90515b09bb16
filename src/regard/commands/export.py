"""`regard export`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated, Any, Literal, get_args

import typer

from .typer_app import app


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, a model's folder, or one that ships.")],
    to: Annotated[str, typer.Option(metavar="[ctranslate2|onnx]", help="The library to write for.")] = "ctranslate2",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write. [default: RUN/ENGINE; one that ships: ./RUN-ENGINE]"),
    ] = None,
    quantization: Annotated[
        Literal["none", "int8"],
        typer.Option(
            help="int8: matrices as bytes. Smaller files, results differ a little: docs/serving.md has both, measured."
        ),
    ] = "none",
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is there.")] = False,
) -> None:
    """Convert a model to CTranslate2 (a fast C++ library), or to ONNX graphs.

    CTranslate2: greedy translations are the same, token for token; `regard translate --engine ctranslate2` runs the
    result. ONNX: encoder and one decoder step, with state and attention weights, or a classifier, for any ONNX runtime;
    every model but those with parts of plug-ins.

    An export records which weights it was made from: after more training, --engine ctranslate2 refuses it until it is
    written again with --force.

    \b
    Examples:
      regard export runs/transformer-multi30k-1
      regard export tatoeba-transformer-en-fr --out fast
      regard export tatoeba-bahdanau-en-fr --to onnx --out graphs
      regard export tatoeba-transformer-en-fr --quantization int8 --out small
      regard export runs/transformer-multi30k-1 --force
    """
    from ..data import TokenizerPair
    from ..decoding import export_ctranslate2, load_model_and_tokenizers
    from ..decoding.onnx import export_onnx
    from ..models import load
    from ..models.config_base import ExportEngine
    from ..models.pretrained_model import WEIGHTS

    if to == "transformers":
        raise ValueError(
            "folders for transformers are not written any more: run the model in regard, or export it with --to "
            "ctranslate2 or --to onnx"
        )
    if to not in get_args(ExportEngine):
        raise ValueError(f"--to is one of {', '.join(get_args(ExportEngine))}, got {to!r}")
    model, run_folder = load_model_and_tokenizers.find(run)
    folder = out or load_model_and_tokenizers.export_folder(model, run_folder, to)
    tokenizers = TokenizerPair.load(model)
    options: dict[str, Any] = {"quantization": quantization, "force": force, "weights": model / WEIGHTS}
    write = export_onnx if to == "onnx" else export_ctranslate2
    write(load(model), tokenizers, folder, **options)  # type: ignore[arg-type]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    typer.echo(f"wrote {folder} ({size / 1e6:.1f} MB)")
