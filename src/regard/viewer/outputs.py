"""Results of models as the page shows them: translations, text and sound classes, captions, with attention weights."""

from __future__ import annotations

import base64
import io
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..attention.statistics import Cells
from ..decoding.answers import classifier_answers
from ..decoding.beam import beam_history
from ..decoding.classification import classify
from ..decoding.translation import translate
from ..models.encoder_decoder import EncoderDecoder
from ..seeing.watch import watch
from ..special_tokens import BEGIN, END
from .contributions import Target, backward_run, call_contributions
from .guard import RequestError
from .responses import rounded
from .traces import TokenLabels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..decoding.beam import SearchSettings
    from ..decoding.load_model_and_tokenizers import Pretrained
    from ..decoding.translation import Translation
    from .library import Library, ModelEntry

ALTERNATIVES = 8
"""Most likely next tokens that are listed for each step of a translation."""
PIXELS = 512
"""Along a side of the picture that is sent back: a square, as the model reads it; the page gives it its proportions."""
LABELS = 16
"""Labels of a classifier that contributions are computed for: each takes a backward pass."""
POINTS = 800
"""Of a waveform."""


@torch.no_grad()
def translation(library: Library, model: ModelEntry, text: str, beams: int) -> dict[str, Any]:
    """A translation, its alignment weights, and for each step the alternatives and the beam."""
    loaded = library.loaded(model)
    network = loaded.model
    assert isinstance(network, EncoderDecoder)
    result = _translate(loaded, text, beams=beams)
    source = torch.tensor([result.source_tokens])
    inputs = torch.tensor([[BEGIN, *result.tokens[:-1]]])
    with watch(network) as seen:  # teacher forcing over the same translation: all steps at once
        annotations = network.encode(source, torch.tensor([source.shape[1]]))
        features = network.decoder(inputs, annotations).features
    logprobs = network.decoder.readout(features)[0].float().log_softmax(-1)  # [T, vocabulary]
    penalty = loaded.search.get("length_penalty", 1.0)
    history = beam_history(network.decoder, annotations, beams=beams, length_penalty=penalty)
    source_labels, target_labels = TokenLabels.of(result.source_pieces), TokenLabels.of(result.pieces)
    fidelities = [call.fidelity() for call in seen if call.kind == "cross"]
    worst = max((x for x in fidelities if x.error is not None), key=lambda x: x.error or 0.0, default=None)
    weights = result.weights
    return {
        "model": model.name,
        "title": model.title,
        "translation": result.text,
        "score": result.hypotheses[0].score,
        "logprob": result.hypotheses[0].logprob,
        "source": source_labels.tokens,
        "source_words": source_labels.words,
        "target": target_labels.tokens,
        "target_words": target_labels.words,
        "maps": 0 if weights is None else len(weights),
        "weights": None if weights is None else rounded(weights.mean(0)),
        "fidelity": None if worst is None else {"error": worst.error, "budget": worst.budget, "kept": worst.faithful},
        "generation": rounded(result.generation),
        "steps": _steps(result, logprobs, history),
    }


def _translate(loaded: Pretrained, source: str, **changes: int) -> Translation:
    settings: SearchSettings = {**loaded.search, "weights": True, **changes}  # type: ignore[typeddict-item]
    return next(iter(translate(loaded.model, loaded.tokenizers, [source], **settings)))


def _steps(result: Translation, logprobs: torch.Tensor, history: list[list[Any]]) -> list[dict[str, Any]]:
    """For every token of the translation: the text before it, the alternatives, and the beam after it."""
    steps = []
    for at, row in enumerate(logprobs):
        best = row.topk(ALTERNATIVES)
        pieces = result.target_pieces(best.indices.tolist())
        beam = history[at] if at < len(history) else []
        steps.append(
            {
                "prefix": result.decode(result.tokens[:at]),
                "alternatives": [
                    {"piece": piece, "logprob": round(value, 5)}
                    for piece, value in zip(pieces, best.values.tolist(), strict=True)
                ],
                "beam": [
                    {"text": result.decode(x.tokens), "score": round(x.score, 5), "ended": x.tokens[-1] == END}
                    for x in beam
                ],
            }
        )
    return steps


def text_classification(library: Library, model: ModelEntry, text: str) -> dict[str, Any]:
    """The label of a text and the attention weight of every token, with its TF-IDF weight for comparison."""
    loaded = library.loaded(model)
    (result,) = classify(loaded.model, loaded.tokenizers, [text], weights=True)
    return {
        "model": model.name,
        "title": model.title,
        "label": result.label,
        "probabilities": result.probabilities,
        "words": loaded.tokenizers.source.pieces([int(x) for x in result.numbers]),
        "weights": rounded(result.weights),
        "static": rounded(result.static),
        **_label_contributions(loaded, text, len(result.numbers)),
    }


def _label_contributions(loaded: Pretrained, text: str, tokens: int) -> dict[str, Any]:
    """What each token contributed to the logit of each label through the pooling, and the error of the proof.

    Where there are none, `contributions` is None and `contributions_missing` says why.
    """
    answers = classifier_answers(loaded, text)
    labels = loaded.tokenizers.target.names[:LABELS]
    contributions, error, budget = {}, 0.0, 0.0
    for number, label in enumerate(labels):
        try:
            seen = backward_run(answers, Target(0, number))[0]
        except RequestError as refusal:
            return {"contributions": None, "contributions_missing": str(refusal)}
        calls = [call for call in seen.calls if call.shape[-1] == tokens and call.shape[-2] == 1]
        if len(calls) != 1:
            why = "this classifier does not pool its tokens by one attention"
            return {"contributions": None, "contributions_missing": why}
        explained = call_contributions(calls[0])
        contributions[label] = rounded(explained.contributions.dense().sum(0)[0])
        error, budget = max(error, explained.error), explained.budget
    return {"contributions": contributions, "contribution_error": error, "contribution_budget": budget}


def caption(library: Library, model: ModelEntry, picture: bytes) -> dict[str, Any]:
    """The caption of a picture, and for each word the weights over the grid of cells."""
    from PIL import Image

    from ..data.media import PictureReader
    from ..seeing.align import caption_word_weights

    loaded = library.loaded(model)
    with _uploaded_file(picture) as path:
        reader = PictureReader(PIXELS)
        pixels, (width, height) = reader.encode(path), reader.proportions(path)
        result = _translate(loaded, path)
        remarks = [text.replace(path, "this picture") for text in loaded.tokenizers.source.remarks(path)]
    weights, words = caption_word_weights(result)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return {
        "model": model.name,
        "title": model.title,
        "text": result.text,
        "remarks": remarks,
        "words": words,
        "grid": list(weights.shape[-2:]),
        "proportions": [width, height],
        "weights": [rounded(cells.flatten()) for cells in weights],
        "picture": "data:image/png;base64," + base64.b64encode(png.getvalue()).decode(),
    }


def sound_classification(library: Library, models: list[ModelEntry], sound: bytes) -> dict[str, Any]:
    """The label of a sound with weights over time, by the first classifier; letters, by the first that transcribes."""
    from ..data.media import SoundReader

    with _uploaded_file(sound) as path:
        reader = SoundReader()
        samples = reader.encode(path)
        content: dict[str, Any] = {"seconds": len(samples) / reader.rate, "waveform": _envelope(samples / 32768)}
        for loaded in map(library.loaded, models):
            if loaded.model.task == "spell":
                content.setdefault("spelled", _letters(loaded, path))
            elif "label" not in content:
                (result,) = classify(loaded.model, loaded.tokenizers, [path], weights=True)
                content |= {"label": result.label, "probabilities": result.probabilities}
                content["weights"] = [] if result.weights is None else rounded(result.weights)
    if "label" not in content:
        content |= {"label": "".join(x["letter"] for x in content["spelled"]), "probabilities": {}, "weights": []}
    return content


def _letters(loaded: Pretrained, path: str) -> list[dict[str, Any]]:
    result = _translate(loaded, path)
    if result.weights is None:
        return [{"letter": piece, "weights": None} for piece in result.pieces[:-1]]
    rows = result.weights.mean(0)[:-1]  # the last is </s>
    return [
        {"letter": piece.replace("▁", " "), "weights": rounded(row)}
        for piece, row in zip(result.pieces, rows, strict=False)
    ]


def _envelope(samples: Any) -> list[list[float]]:
    """The minimum and maximum of each interval of time."""
    spans = [samples[a:b] for a, b in pairwise(Cells.edges(len(samples), POINTS)) if b > a]
    return [[round(float(span.min()), 5), round(float(span.max()), 5)] for span in spans]


@contextmanager
def _uploaded_file(content: bytes) -> Iterator[str]:
    """The path of a temporary file with the uploaded content, for readers that take paths."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / "upload"
        path.write_bytes(content)
        try:
            yield str(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "the uploaded file")) from None
