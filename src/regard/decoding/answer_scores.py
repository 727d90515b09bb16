"""The answers that a model chooses from at one position, as numbers to explain: logits, or similarities of vectors.

model                       answers                                  number
writes or translates        the tokens of its vocabulary             the logit of the next token
classifies                  its labels                               the logit of the label
only reads (no output       the other tokens of the text, and the    the cosine of the two final vectors
layer)                      whole text (the mean vector)
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..seeing.watch import watch
from ..special_tokens import BEGIN, END
from .classification import classify
from .generation import generate
from .translation import stacked, translate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxtyping import Float
    from torch import Tensor, nn

    from ..seeing.text_models import TextModel, TokenizedText
    from ..seeing.trace import Seen
    from .model_folders import Pretrained

WHOLE_TEXT = "the whole text"


@dataclass(frozen=True, slots=True, eq=False)
class AnswerInputs:
    """A model, what it reads, and the scores of its answers at one position."""

    model: nn.Module
    inputs: dict[str, Any]
    """Keyword arguments of the model."""
    scores: Callable[[Any], Float[Tensor, "b answers"]]
    """From what the model returns to the scores of all answers at the position."""
    names: Callable[[list[int]], list[str]]
    """The tokens or labels of some answers."""
    find: Callable[[str], int]
    """The answer that a word means; a ValueError where it means none."""
    kind: str
    """What an answer is: "next token", "label" or "similarity"."""
    positions: int
    """Positions that have answers."""
    position: int

    def metric(self, answer: int, minus: int | None = None) -> Callable[[Any], Float[Tensor, " b"]]:
        """The score of an answer, less that of another, from what the model returns."""

        def score(output: Any) -> Tensor:
            scores = self.scores(output)
            return scores[:, answer] if minus is None else scores[:, answer] - scores[:, minus]

        return score


def check_position(position: int, count: int) -> int:
    """The position counted from 0; negative ones count from the end."""
    if not -count <= position < count:
        raise ValueError(f"there is no position {position}; there are {count}, counted from 0")
    return position % count


# Models of regard


def writer_answers(loaded: Pretrained, ids: Sequence[int], position: int = -1) -> AnswerInputs:
    """The next token after a position of a text that a language model of regard reads."""
    longest = loaded.model.config.longest
    if len(ids) > longest:
        raise ValueError(f"the text has {len(ids)} tokens; this model reads {longest}")
    device = next(loaded.model.parameters()).device
    one = torch.ones(1, dtype=torch.int64, device=device)
    inputs = {"source": one[:, None], "lengths": one, "target": torch.tensor([list(ids)], device=device)}
    return _decoder_answers(loaded, inputs, check_position(position, len(ids)), len(ids))


def greedy_translation(loaded: Pretrained, text: str) -> tuple[list[int], list[int]]:
    """Ids of the source, and of the greedy translation as the decoder reads it: from <s> to the token before </s>."""
    (result,) = translate(loaded.model, loaded.tokenizers, [text], beams=1)
    return list(result.source_tokens), [BEGIN, *result.tokens[:-1]]


def translator_answers(
    loaded: Pretrained, text: str, position: int = -1, decoded: tuple[list[int], list[int]] | None = None
) -> AnswerInputs:
    """The token at a position of the greedy translation of a text; `decoded` is that translation where it is known."""
    source, target = decoded or greedy_translation(loaded, text)
    device = next(loaded.model.parameters()).device
    inputs = {
        "source": torch.tensor([source], device=device),
        "lengths": torch.tensor([len(source)], device=device),
        "target": torch.tensor([target], device=device),
    }
    return _decoder_answers(loaded, inputs, check_position(position, len(target)), len(target))


def _decoder_answers(loaded: Pretrained, inputs: dict[str, Any], position: int, count: int) -> AnswerInputs:
    tokenizer, model = loaded.tokenizers.target, loaded.model

    def scores(output: Any) -> Tensor:
        logits: Tensor = model.readout(output.features[:, position])
        return logits

    def find(word: str) -> int:
        ids = tokenizer.encode(word.strip()) if word.strip() else []
        pieces = tokenizer.pieces(ids)
        kept = [token for token, piece in zip(ids, pieces, strict=True) if piece.strip("▁ ")]
        if not kept:
            raise ValueError(f"{word[:40]!r} is no word of this model's vocabulary; give another")
        return int(kept[0])

    return AnswerInputs(model, inputs, scores, tokenizer.pieces, find, "next token", count, position)


def classifier_answers(loaded: Pretrained, text: str, position: int = -1) -> AnswerInputs:
    """The labels that a classifier of regard may give a text: of its only position, 0."""
    position = check_position(position, 1)
    device = next(loaded.model.parameters()).device
    source, lengths = (part.to(device) for part in stacked([np.asarray([*loaded.tokenizers.source.encode(text), END])]))
    labels: list[str] = loaded.tokenizers.target.names

    def find(word: str) -> int:
        if word not in labels:
            raise ValueError(f"there is no label {word[:40]!r}; choose from {', '.join(labels)}")
        return labels.index(word)

    inputs = {"source": source, "lengths": lengths}
    names = partial(_some, labels)
    return AnswerInputs(loaded.model, inputs, lambda output: output.logits, names, find, "label", 1, position)


def _some(names: list[str], at: list[int]) -> list[str]:
    return [names[n] for n in at]


# Models of Hugging Face


def text_model_answers(text_model: TextModel, text: TokenizedText, position: int = -1) -> AnswerInputs:
    """The next token after a position; of a model without an output layer, similarities of final vectors."""
    if text_model.is_encoder_decoder:
        raise ValueError(f"{text_model.name} reads one text and writes another; its answers are not known here")
    inputs: dict[str, Any] = text_model.inputs(text)
    position = check_position(position, len(text))
    if text_model.model.get_output_embeddings() is None:  # type: ignore[operator]
        return _vector_answers(text_model, inputs, text, position)
    kept = position
    if "logits_to_keep" in inspect.signature(text_model.model.forward).parameters:
        inputs["logits_to_keep"], kept = len(text) - position, 0  # the last so many
    tokenizer = text_model.tokenizer

    def find(word: str) -> int:
        ids = tokenizer(f" {word.strip()}", add_special_tokens=False)["input_ids"]
        if not word.strip() or not ids:
            raise ValueError(f"{word[:40]!r} is no word; give one that the model may continue with")
        return int(ids[0])  # the first token of the word after a space

    def scores(output: Any) -> Tensor:
        logits: Tensor = output.logits[:, kept]
        return logits

    names = tokenizer.convert_ids_to_tokens
    return AnswerInputs(text_model.model, inputs, scores, names, find, "next token", len(text), position)


def _vector_answers(text_model: TextModel, inputs: dict[str, Any], text: TokenizedText, position: int) -> AnswerInputs:
    names = [*text.tokens, WHOLE_TEXT]

    def scores(output: Any) -> Tensor:
        x = output.last_hidden_state
        others = torch.cat([x, x.mean(dim=1, keepdim=True)], dim=1)
        return torch.nn.functional.cosine_similarity(x[:, position, None], others, dim=-1)

    def find(word: str) -> int:
        if word not in names:
            raise ValueError(f"{word[:40]!r} is no token of this text, nor {WHOLE_TEXT!r}")
        return names.index(word)

    return AnswerInputs(
        text_model.model, inputs, scores, partial(_some, names), find, "similarity", len(text), position
    )


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
