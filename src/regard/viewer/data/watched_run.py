"""Runs of regard's own models while their attention is watched: translation, generation, classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...decoding.batched_translation import translate
from ...decoding.classification import classify
from ...decoding.text_generation import generate
from ...seeing.capture.watch import watch

if TYPE_CHECKING:
    from ...decoding.load_model_and_tokenizers import Pretrained
    from ...seeing import Seen

TASKS = ("translate", "classify", "write")
"""Tasks of models (`model.task`) that `watched_run` runs."""


def watched_run(loaded: Pretrained, text: str, tokens: int = 0) -> tuple[Seen, int]:
    """What a model attended to over a text, and the number of tokens of its prompt (0 where it has none).

    `tokens` are generated after the text by a model that writes.
    """
    if loaded.model.task == "translate":
        return _translation(loaded, text), 0
    if loaded.model.task == "classify":
        return _classification(loaded, text), 0
    return _generation(loaded, text, tokens)


def _translation(loaded: Pretrained, text: str) -> Seen:
    """Greedy translation. A row of the decoder is labelled by its output token, its keys by its inputs."""
    with watch(loaded.model) as seen:
        (result,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    seen.tokens = [result.source_pieces]
    seen.sides = {"source": result.source_pieces, "target": result.pieces, "read": ["<s>", *result.pieces[:-1]]}
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
