"""Translating: a sentence in the other language, where the model looked for each word, and what else it considered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...data.batch import BEGIN, END
from ...decoding.beam_history import trail
from ...decoding.translation import translate
from ...models import EncoderDecoder
from ...seeing.capture.watch import watch
from .token_labels import TokenLabels

if TYPE_CHECKING:
    from ...data import Tokenizer
    from ...decoding import Translation
    from ...decoding.search import Settings
    from .library import Library, ModelEntry

CHOICES = 8
"""Tokens shown of those that could come next."""


@torch.no_grad()
def translated(library: Library, asked: ModelEntry, text: str, beams: int) -> dict[str, Any]:
    loaded = library.loaded(asked)
    model = loaded.model
    assert isinstance(model, EncoderDecoder)
    how: Settings = {**loaded.search, "beams": beams, "weights": True}
    (found,) = translate(model, loaded.tokenizers, [text], **how)
    source = torch.tensor([found.source_tokens])
    read = torch.tensor([[BEGIN, *found.tokens[:-1]]])
    with watch(model) as seen:  # the same translation once more, all steps at once
        annotations = model.encode(source, torch.tensor([source.shape[1]]))
        features = model.decoder(read, annotations).features
    logprobs = model.decoder.readout(features)[0].float().log_softmax(-1)  # [T, vocabulary]
    penalty = loaded.search.get("length_penalty", 1.0)
    held = trail(model.decoder, annotations, beams=beams, length_penalty=penalty)
    sides = {"source": TokenLabels.of(found.source_pieces), "target": TokenLabels.of(found.pieces)}
    faith = [call.fidelity() for call in seen if call.kind == "cross"]
    worst = max((x for x in faith if x.error is not None), key=lambda x: x.error or 0.0, default=None)
    weights = found.weights
    return {
        "model": asked.name,
        "title": asked.title,
        "translation": found.text,
        "score": found.hypotheses[0].score,
        "logprob": found.hypotheses[0].logprob,
        "source": sides["source"].tokens,
        "source_words": sides["source"].words,
        "target": sides["target"].tokens,
        "target_words": sides["target"].words,
        "maps": 0 if weights is None else len(weights),
        "weights": None if weights is None else _rounded(weights.mean(0)),
        "fidelity": None if worst is None else {"error": worst.error, "budget": worst.budget, "kept": worst.kept},
        "steps": _steps(found, logprobs, held, loaded.tokenizers.target),
    }


def _steps(
    found: Translation, logprobs: torch.Tensor, held: list[list[Any]], tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """For every token of the translation: what stood before it, what could have come, what the beam held after it."""
    steps = []
    for at, row in enumerate(logprobs):
        best = row.topk(CHOICES)
        pieces = tokenizer.pieces(best.indices.tolist())
        beam = held[at] if at < len(held) else []
        steps.append(
            {
                "prefix": tokenizer.decode(found.tokens[:at]),
                "alternatives": [
                    {"piece": piece, "logprob": round(value, 5)}
                    for piece, value in zip(pieces, best.values.tolist(), strict=True)
                ],
                "beam": [
                    {"text": tokenizer.decode(x.tokens), "score": round(x.score, 5), "ended": x.tokens[-1] == END}
                    for x in beam
                ],
            }
        )
    return steps


def _rounded(x: torch.Tensor) -> list[list[float]]:
    return [[round(one, 6) for one in row] for row in x.tolist()]
