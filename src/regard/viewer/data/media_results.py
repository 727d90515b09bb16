"""Senses: texts that are named, pictures that are told, sounds that are heard, each with where the model looked."""

from __future__ import annotations

import base64
import io
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...decoding.classification import classify
from ...decoding.translation import translate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from ...decoding.pretrained import Pretrained
    from ...decoding.search import Settings
    from .library import Library, ModelEntry

PIXELS = 512
"""Along a side of the picture that is sent back, as the model saw it: whole, whatever its proportions were."""
POINTS = 800
"""Of a waveform."""


def named(library: Library, model: ModelEntry, text: str) -> dict[str, Any]:
    """A text, its label and the weight of every token; beside it TF-IDF's, which know nothing of the label."""
    loaded = library.loaded(model)
    (found,) = classify(loaded.model, loaded.tokenizers, [text], weights=True)
    return {
        "model": model.name,
        "title": model.title,
        "label": found.label,
        "probabilities": found.probabilities,
        "words": loaded.tokenizers.source.pieces([int(x) for x in found.numbers]),
        "weights": _numbers(found.weights),
        "static": _numbers(found.static),
    }


def told(library: Library, model: ModelEntry, picture: bytes) -> dict[str, Any]:
    """A picture, what it shows in words, and the weights over its grid of cells word by word."""
    from PIL import Image

    from ...data.picture_reader import PictureReader
    from ...seeing.alignment import caption_word_weights

    loaded = library.loaded(model)
    with _file(picture) as name:
        seen = PictureReader(PIXELS).encode(name)
        how: Settings = {**loaded.search, "weights": True}
        (found,) = translate(loaded.model, loaded.tokenizers, [name], **how)
    weights, words = caption_word_weights(found)
    packed = io.BytesIO()
    Image.fromarray(seen).save(packed, "PNG")
    return {
        "model": model.name,
        "title": model.title,
        "text": found.text,
        "words": words,
        "grid": list(weights.shape[-2:]),
        "weights": [_numbers(one.flatten()) for one in weights],
        "picture": "data:image/png;base64," + base64.b64encode(packed.getvalue()).decode(),
    }


def heard(models: Iterable[Pretrained], sound: bytes) -> dict[str, Any]:
    """A sound, its label and the weights over time, by the first that names sounds; its letters, by one that spells."""
    from ...data.sound_reader import SoundReader

    with _file(sound) as name:
        reader = SoundReader()
        samples = reader.encode(name)
        answer: dict[str, Any] = {"seconds": len(samples) / reader.rate, "waveform": _envelope(samples / 32768)}
        for loaded in models:
            if loaded.model.task == "spell":
                answer.setdefault("spelled", _spelled(loaded, name))
            elif "label" not in answer:
                (found,) = classify(loaded.model, loaded.tokenizers, [name], weights=True)
                answer |= {"label": found.label, "probabilities": found.probabilities}
                answer["weights"] = _numbers(found.weights) or []
    if "label" not in answer:
        answer |= {"label": "".join(x["letter"] for x in answer["spelled"]), "probabilities": {}, "weights": []}
    return answer


def _spelled(loaded: Pretrained, name: str) -> list[dict[str, Any]]:
    how: Settings = {**loaded.search, "weights": True}
    (found,) = translate(loaded.model, loaded.tokenizers, [name], **how)
    if found.weights is None:
        return [{"letter": piece, "weights": None} for piece in found.pieces[:-1]]
    rows = found.weights.mean(0)[:-1]  # the last is </s>
    return [
        {"letter": x.replace("▁", " "), "weights": _numbers(row)} for x, row in zip(found.pieces, rows, strict=False)
    ]


def _envelope(samples: Any) -> list[list[float]]:
    """The least and the largest of each stretch of time."""
    edges = [at * len(samples) // POINTS for at in range(POINTS + 1)]
    spans = [samples[a:b] for a, b in pairwise(edges) if b > a]
    return [[round(float(span.min()), 5), round(float(span.max()), 5)] for span in spans]


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """What was sent, in a file of our own naming, for readers that take names."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / "sent"
        path.write_bytes(content)
        try:
            yield str(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "what was sent")) from None


def _numbers(x: Tensor | None) -> list[float] | None:
    return None if x is None else [float(f"{one:.6g}") for one in x.tolist()]
