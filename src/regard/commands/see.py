"""`regard see`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Device, find_device
from .text_input import one_text
from .typer_app import app

if TYPE_CHECKING:
    from ..seeing import Call, Seen
    from ..seeing.drawing.head_report import Labels

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="minilm, smollm2, a folder, a Hugging Face name, or a translator of ours."),
]


@app.command()
def see(
    model: ModelName,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="What the model reads, in quotes.")],
    second: Annotated[
        str | None, typer.Option("--with", metavar="TEXT", help="A second sentence, for models that read pairs.")
    ] = None,
    layer: Annotated[int | None, typer.Option(metavar="N", min=0, help="Draw a head of this layer.")] = None,
    head: Annotated[int, typer.Option(metavar="N", min=0, help="Which head to draw.")] = 0,
    links: Annotated[int, typer.Option(metavar="N", min=0, help="How many of the strongest links to list.")] = 12,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep all of it as a trace, for regard.load_trace.")
    ] = None,
    device: Device = "auto",
) -> None:
    """The attention of a model as it reads a text: every layer, what its heads do, and who looks at whom.

    The model runs as it always does; what is shown is computed from its own queries and keys, and the last column of
    the table says how far it is from what the model computed.

    \b
    Examples:
      regard see minilm "The cat sat on the mat because it was tired."
      regard see minilm "The cat is tired." --with "Why is the cat tired?"
      regard see smollm2 "When Mary and John went out, John gave a book to" --layer 17 --head 3
      regard see tatoeba-transformer-en-fr "Where is the library?" --save trace
    """
    from rich.console import Console

    from ..seeing.drawing.head_report import check_head, report

    if save is not None and save.exists():
        raise ValueError(f"{save} exists; choose another name for the trace, or remove it")
    console, text = Console(), one_text(texts) or ""
    place = find_device(device)
    seen, names = _ours(model, text, second, place) if is_ours(model) else _theirs(model, text, second, place)
    if not len(seen):
        raise ValueError(f"{model}: {seen.advice}")
    if layer is not None:
        check_head(seen, layer, head)
    if save is not None:  # before anything is shown: who pipes it into `head` ends the program there
        seen.save(save)
    for part in report(seen, names, layer, head, links):
        console.print(part)
    if save is not None:
        console.print(f"wrote {save}", markup=False)


def is_ours(name: str) -> bool:
    """Whether this is a translator of ours: a run, a model's folder, or one that ships."""
    from ..decoding.pretrained import shipped

    folder = Path(name)
    if (folder / "model" / "config.json").is_file() or (not folder.exists() and name in shipped()):
        return True
    config = folder / "config.json"
    if not config.is_file():
        return False
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        raise ValueError(f"{config} is not a model's configuration: it should be a JSON object") from None
    return str(kind).startswith("regard-")


def _theirs(name: str, text: str, second: str | None, device: str) -> tuple[Seen, Labels]:
    from ..seeing.capture.huggingface_text_model import load_text_model

    text_model = load_text_model(name, device)
    if not text_model.is_encoder_decoder:
        read = text_model.encode(text, second)
        return text_model.read(read), lambda call: (read.tokens, read.tokens)
    if second is None:
        raise ValueError(f"{name} reads one text and writes another: give what it writes with --with")
    source, target = text_model.encode(text), text_model.encode_target(second)
    start = str(text_model.tokenizer.convert_ids_to_tokens(text_model.start_token))
    seen = text_model.read(source, target)
    return seen, _sides(seen, source.tokens, target.tokens, [start, *target.tokens])


def _ours(name: str, text: str, second: str | None, device: str) -> tuple[Seen, Labels]:
    from ..decoding import pretrained, translate
    from ..seeing import watch

    if second is not None:
        raise ValueError(f"{name} translates one sentence; --with is for models that read pairs")
    loaded = pretrained.load(name, device, wanted=("translate",))
    with watch(loaded.model) as seen:
        (found,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    seen.model, seen.tokens = name, [found.pieces]
    # A row of the decoder is named by what it writes; its own keys are what it has read by then.
    return seen, _sides(seen, found.source_pieces, found.pieces, ["<s>", *found.pieces])


def _sides(seen: Seen, source: list[str], written: list[str], read: list[str]) -> Labels:
    """Rows and columns of a call of a model with an encoder and a decoder."""
    seen.sides = {"source": source, "target": written, "read": read}

    def names(call: Call) -> tuple[list[str], list[str]]:
        if call.kind == "cross":
            return written, source
        return (written, read) if "decoder" in call.name else (source, source)

    return names
