"""`regard see`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from .shared_options import Device, ModelName, TrustRemoteCode, find_device
from .text_input import one_text
from .typer_app import app

if TYPE_CHECKING:
    from ..seeing import Seen


@app.command()
def see(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="What the model reads, in quotes.")],
    second: Annotated[
        str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
    ] = None,
    layer: Annotated[int | None, typer.Option(metavar="N", min=0, help="Draw a head of this layer.")] = None,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Which head to draw.")] = 0,
    links: Annotated[int, typer.Option(metavar="N", min=0, help="How many of the largest weights to list.")] = 12,
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a trace, for regard.load_trace.")] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Show the attention of a model that reads a text: all layers, the patterns of heads, the largest weights.

    The model runs unchanged; weights are computed from its queries and keys, and the last column of the table says how
    far they are from what the model computed.

    \b
    Examples:
      regard see minilm "The cat sat on the mat because it was tired."
      regard see minilm "The cat is tired." --with "Why is the cat tired?"
      regard see smollm2 "When Mary and John went out, John gave a book to" --layer 17 --head 3
      regard see tatoeba-transformer-en-fr "Where is the library?" --save trace
      regard see opinions-lstm "the food was not good" --layer 0
      regard see scenes-soft scene:test:0:7 --layer 0
    """
    from rich.console import Console

    from ..seeing.drawing.head_report import check_head, report

    if save is not None and save.exists():
        raise ValueError(f"{save} exists; choose another name for the trace, or remove it")
    from ..decoding.load_model_and_tokenizers import is_own_model

    console, text = Console(), one_text(texts) or ""
    if is_own_model(model):
        seen = _watch_own(model, text, second, find_device(device))
    else:
        seen = _watch_huggingface(model, text, second, find_device(device), trust_remote_code)
    if not len(seen):
        raise ValueError(f"{model}: {seen.advice}")
    if layer is not None:
        check_head(seen, layer, head)
    if save is not None:  # before anything is printed: with `| head` the process ends there
        seen.save(save)
    for part in report(seen, layer, head, links):
        console.print(part)
    if save is not None:
        console.print(f"wrote {save}", markup=False)


def _watch_huggingface(name: str, text: str, second: str | None, device: str, trust_remote_code: bool) -> Seen:
    from ..seeing.capture.huggingface_text_model import load_text_model

    model = load_text_model(name, device, trust_remote_code=trust_remote_code)
    if not model.is_encoder_decoder:
        return model.read(model.encode(text, second))
    if second is None:
        raise ValueError(f"{name} reads one text and writes another: give what it writes with --with")
    return model.read(model.encode(text), model.encode_target(second))


def _watch_own(name: str, text: str, second: str | None, device: str) -> Seen:
    from ..decoding import load_model_and_tokenizers, translate
    from ..seeing import watch
    from ..viewer.data.model_run import TASKS, reads_file, watch_file, watch_text

    if second is not None:
        raise ValueError(f"{name} reads one sentence; --with is for models that read pairs")
    loaded = load_model_and_tokenizers.load(name, device, wanted=TASKS)
    if reads_file(loaded):
        seen, _ = watch_file(loaded, text)
        seen.model = name
        return seen
    if loaded.model.task != "translate":
        seen, _ = watch_text(loaded, text)
        seen.model = name
        return seen
    with watch(loaded.model) as seen:
        (translation,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    source, target = translation.source_pieces, translation.pieces
    seen.model, seen.tokens = name, [target]
    seen.sides = {"source": source, "target": target, "read": ["<s>", *target]}
    return seen
