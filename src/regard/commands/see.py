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
    from collections.abc import Callable, Iterator

    from rich.console import RenderableType

    from ..seeing import Call, Seen

    Names = Callable[[Call], tuple[list[str], list[str]]]
    """The words beside the rows and the columns of a call."""

WIDEST = 120
"""Tokens up to which a head is drawn in the terminal."""

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

    if save is not None and save.exists():
        raise ValueError(f"{save} exists; choose another name for the trace, or remove it")
    console, text = Console(), one_text(texts) or ""
    place = find_device(device)
    seen, names = _ours(model, text, second, place) if is_ours(model) else _theirs(model, text, second, place)
    if not len(seen):
        raise ValueError(f"{model}: {seen.advice}")
    if layer is not None:
        _drawable(seen, layer, head)
    if save is not None:  # before anything is shown: who pipes it into `head` ends the program there
        seen.save(save)
    for part in _shown(seen, names, layer, head, links):
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


def _theirs(name: str, text: str, second: str | None, device: str) -> tuple[Seen, Names]:
    from ..seeing.capture import text_model

    found = text_model.load(name, device)
    if not found.translates:
        read = found.text(text, second)
        return found.read(read), lambda call: (read.tokens, read.tokens)
    if second is None:
        raise ValueError(f"{name} reads one text and writes another: give what it writes with --with")
    source, target = found.text(text), found.written(second)
    start = str(found.tokenizer.convert_ids_to_tokens(found.start))
    seen = found.read(source, target)
    return seen, _sides(seen, source.tokens, target.tokens, [start, *target.tokens])


def _ours(name: str, text: str, second: str | None, device: str) -> tuple[Seen, Names]:
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


def _sides(seen: Seen, source: list[str], written: list[str], read: list[str]) -> Names:
    """Rows and columns of a call of a model with an encoder and a decoder."""
    seen.sides = {"source": source, "target": written, "read": read}

    def names(call: Call) -> tuple[list[str], list[str]]:
        if call.kind == "cross":
            return written, source
        return (written, read) if "decoder" in call.name else (source, source)

    return names


def _drawable(seen: Seen, layer: int, head: int) -> None:
    """Refuse a head that is not there, or one too wide for a terminal."""
    if layer >= len(seen) or head >= seen[layer].heads:
        raise ValueError(f"there are {len(seen)} layers of {seen[0].heads} heads; asked for {layer}.{head}")
    longest = max(seen[layer].shape[-2:])
    if longest > WIDEST:
        raise ValueError(
            f"a head is drawn up to {WIDEST} tokens, there are {longest}; leave --layer out, and keep all with --save"
        )


def _shown(seen: Seen, names: Names, layer: int | None, head: int, links: int) -> Iterator[RenderableType]:
    """The table of layers, the heads' patterns where the model read one text, the strongest links, one head drawn.

    What is not what the model computed is in the table, and is not shown further.
    """
    from rich.text import Text

    from ..seeing.analysis.head_patterns import Patterns
    from ..seeing.drawing import terminal_report
    from ..seeing.drawing.terminal_heatmap import heatmap

    yield seen
    wrong = [call.name for call in seen if call.fidelity().kept is False]
    if wrong:
        yield Text(f"\n{', '.join(wrong)}: not what the model computed, so no pattern or link is shown", style="red")
    if seen.text is not None and not wrong:
        patterns = Patterns()
        patterns.add(seen, seen.text)
        yield ""
        yield terminal_report.grid(patterns)
        yield ""
        yield terminal_report.best(patterns)
    if links and not wrong:
        yield ""
        yield terminal_report.linked(seen, names, links)
    if layer is not None:
        call = seen[layer]
        if call.name in wrong:
            yield Text(f"{call.name} is not drawn", style="red")
            return
        *_, queries, keys = call.shape
        rows, cols = names(call)
        yield ""
        yield heatmap(call.head(head).tile(slice(None), slice(None)).cpu(), _fit(rows, queries), _fit(cols, keys))


def _fit(names: list[str], count: int) -> list[str]:
    """Names for so many rows; a search may look one step further than it keeps."""
    return [*names[:count], *("" for _ in range(count - len(names)))]
