"""Runs of regard's own models over a text, a picture or a sound, with their attention recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..seeing.capture.watch import watch
from .classification import classify
from .text_generation import generate
from .translation import translate

if TYPE_CHECKING:
    from ..seeing import Seen
    from .load_model_and_tokenizers import Pretrained

TASKS = ("translate", "classify", "write", "caption")
"""Tasks of models (`model.task`) that `watch_text` and `watch_file` run."""


def reads_file(loaded: Pretrained) -> bool:
    """Whether a model reads files, pictures or sounds: `watch_file` runs it, not `watch_text`."""
    return bool(loaded.tokenizers.source.kind in ("picture", "sound"))


def watch_file(loaded: Pretrained, file: str) -> tuple[Seen, tuple[int, int] | None]:
    """What a captioner or a classifier of sounds attended to over a file, and the grid of a picture's cells.

    For commands only: a file is opened by its name, which no request of a browser may give.
    """
    if loaded.model.task == "caption":
        return _caption(loaded, file)
    with watch(loaded.model) as seen:
        (result,) = classify(loaded.model, loaded.tokenizers, [file], weights=True)
    places = max((call.shape[-1] for call in seen), default=0)
    step = len(result.numbers) / loaded.tokenizers.source.rate / max(places, 1)
    sides = {"source": [f"{place * step:.2f} s" for place in range(places)], "target": [result.label]}
    seen.tokens, seen.sides = [sides["source"]], sides
    return seen, None


def _caption(loaded: Pretrained, file: str) -> tuple[Seen, tuple[int, int]]:
    """Cells of the picture are labelled by row and column, from the upper left corner."""
    with watch(loaded.model) as seen:
        (result,) = translate(loaded.model, loaded.tokenizers, [file], beams=1)
    cells = max((call.shape[-1] for call in seen if call.kind == "cross"), default=0)
    side = round(cells**0.5)
    names = [f"{row},{column}" for row in range(side) for column in range(side)]
    seen.tokens = [result.pieces]
    seen.sides = {"source": names, "target": result.pieces, "read": ["<s>", *result.pieces[:-1]]}
    return seen, (side, side)


def watch_text(loaded: Pretrained, text: str, tokens: int = 0) -> tuple[Seen, int]:
    """What a model attended to over a text, and the number of tokens of its prompt (0 where it has none).

    `tokens` are generated after the text by a model that writes.
    """
    if loaded.model.task == "translate":
        return _translation(loaded, text), 0
    if loaded.model.task == "classify":
        return _classification(loaded, text), 0
    return _generation(loaded, text, tokens)


def _translation(loaded: Pretrained, text: str) -> Seen:
    """Greedy translation. A row of the decoder is labelled by its output token, its keys by its inputs.

    Of a decoder that copies, `sides["generation"]` has p_gen of each row as text.
    """
    with watch(loaded.model) as seen:
        (result,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    seen.tokens = [result.source_pieces]
    seen.sides = {"source": result.source_pieces, "target": result.pieces, "read": ["<s>", *result.pieces[:-1]]}
    if loaded.model.config.decoder.copies:
        (result,) = translate(loaded.model, loaded.tokenizers, [text], beams=1, weights=True)
        assert result.generation is not None
        seen.sides["generation"] = [f"{p:.4f}" for p in result.generation.tolist()]
    return seen


def _classification(loaded: Pretrained, text: str) -> Seen:
    """The query of the pooling is labelled by the label that the text gets."""
    with watch(loaded.model) as seen:
        (result,) = classify(loaded.model, loaded.tokenizers, [text], weights=True)
    pieces = loaded.tokenizers.source.pieces([int(x) for x in result.numbers])
    seen.tokens = [pieces]
    seen.sides = {"source": pieces, "target": [result.label]}
    return seen


def _generation(loaded: Pretrained, text: str, tokens: int) -> tuple[Seen, int]:
    """Greedy generation after a prompt."""
    tokenizer = loaded.tokenizers.target
    prompt = tokenizer.pieces(tokenizer.continued(text))
    with watch(loaded.model) as seen:
        generated = list(generate(loaded.model, tokenizer, text, tokens=tokens + 1))
    seen.tokens = [[*prompt, *generated[:-1]]]  # the last token is never an input
    return seen, len(prompt)
