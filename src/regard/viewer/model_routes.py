"""Routes that run models on a text, a picture or a sound, with a part changed or shown; and what they answer."""

from __future__ import annotations

import base64
import io
import tempfile
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from ..attention.statistics import Cells
from ..decoding.beam import beam_history
from ..decoding.classification import classify
from ..decoding.translation import translate
from ..seeing.watch import watch
from ..special_tokens import BEGIN, END
from . import guard
from .answer_contributions import next_tokens, what_if
from .guard import RequestError
from .inside import inside_view
from .library import PICTURE, SOUND, sample_files
from .responses import BYTES, ERRORS, JSON, rounded
from .trace_view import TokenLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..decoding.beam import SearchSettings
    from ..decoding.model_folders import Pretrained
    from ..decoding.translation import Translation
    from .library import Library, ModelEntry
    from .tiles import Jobs

# --- Routes ----------------------------------------------------------------------------------------------------------

model_router = APIRouter(responses=ERRORS)
UPLOAD = {"requestBody": {"required": True, "content": BYTES}}
"""The body is the file itself, of any content type."""
"""Written by tools/results_page.py from the runs of docs/results.md."""
LONGEST = 2000
"""Characters of a text for an experiment, which runs the model twice and compares every weight."""


class TextRequest(BaseModel):
    """A text, and the models to run on it."""

    model_config = {"extra": "forbid"}
    text: str = Field(min_length=1, max_length=guard.TEXT, pattern=r"\S")
    models: list[str] = Field(min_length=1, max_length=guard.MODELS)


class TranslateRequest(TextRequest):
    beams: int = Field(default=5, ge=1, le=guard.BEAMS)


class ModelText(BaseModel):
    """A model and a text for it."""

    model_config = {"extra": "forbid"}
    model: str = Field(max_length=200)
    text: str = Field(min_length=1, max_length=LONGEST)


class InsideRequest(ModelText):
    layer: int = Field(default=0, ge=0)
    head: int = Field(default=0, ge=0)


class NextRequest(ModelText):
    text: str = Field(default="", max_length=guard.TEXT)
    temperature: float = Field(default=1.0, ge=0.05, le=10.0)


Index = Annotated[int, Field(ge=0)]


class WhatIfRequest(ModelText):
    silence: dict[str, list[Index]] = Field(default_factory=dict, max_length=64)
    hide: list[Index] = Field(default_factory=list, max_length=64)


@model_router.get("/samples")
async def samples() -> Response:
    """Pictures and sounds to try the models with: `pictures` and `sounds`, each {name, type, data in base64}."""
    kinds = {"pictures": (PICTURE, "image/png"), "sounds": (SOUND, "audio/wav")}
    content = {
        kind: [
            {"name": path.stem, "type": type, "data": base64.b64encode(path.read_bytes()).decode()}
            for path in sample_files(suffix)
        ]
        for kind, (suffix, type) in kinds.items()
    }
    return JSON(content)


@model_router.post("/translate")
async def post_translate(request: Request, body: TranslateRequest) -> Response:
    """The translation of each model, its alignment weights, and the beam at every step."""
    results = await _results(request, body, "translate", partial(translation, beams=body.beams))
    return JSON({"translations": results})


@model_router.post("/classify")
async def post_classify(request: Request, body: TextRequest) -> Response:
    """The label of each model for a text, and the weight of every token."""
    return JSON({"classifications": await _results(request, body, "classify", text_classification)})


async def _results(request: Request, body: TextRequest, task: str, function: Callable[..., Any]) -> list[Any]:
    jobs: Jobs = request.app.state.jobs
    models = [jobs.library.model(name, task) for name in dict.fromkeys(body.models)]
    return [await jobs.run_model(request, partial(function, jobs.library, model, body.text)) for model in models]


@model_router.post("/caption", openapi_extra=UPLOAD)
async def post_caption(request: Request) -> Response:
    """The caption of a picture (PNG, JPEG, WebP, …) by the first captioner, and its weights for each word."""
    jobs, picture = request.app.state.jobs, await request.body()
    model = jobs.library.models_for("caption")[0]
    return JSON(await jobs.run_model(request, partial(caption, jobs.library, model, picture)))


@model_router.post("/listen", openapi_extra=UPLOAD)
async def post_listen(request: Request) -> Response:
    """The label of a sound (WAV, FLAC, OGG), its letters where a model transcribes, and the weights over time."""
    jobs, sound = request.app.state.jobs, await request.body()
    models = jobs.library.models_for("listen")[: guard.MODELS]
    return JSON(await jobs.run_model(request, partial(sound_classification, jobs.library, models, sound)))


@model_router.post("/inside")
async def inside(request: Request, body: InsideRequest) -> Response:
    """One layer and head of a Transformer of regard: every matrix of the computation, and the steps that show them."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "translate", "generate")
    if not model.layers:
        raise RequestError(422, f"{model.name} is no Transformer of regard, one layer of which Inside shows")
    compute = partial(inside_view, text=body.text, layer=body.layer, head=body.head)
    return JSON(await jobs.run_model(request, lambda: compute(jobs.library.loaded(model))))


@model_router.post("/next")
async def next_token(request: Request, body: NextRequest) -> Response:
    """The likeliest next tokens after a text, at a temperature."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "generate")
    function = partial(next_tokens, jobs.library, model, body.text, body.temperature)
    return JSON({"next": await jobs.run_model(request, function)})


@model_router.post("/what-if")
async def experiment(request: Request, body: WhatIfRequest) -> Response:
    """A text read as it is and with heads silenced or tokens hidden: predictions, changed heads, the new trace."""
    jobs = request.app.state.jobs
    model = jobs.library.model(body.model, "translate", "read", "generate", "classify")
    owner = request.state.session
    function = partial(what_if, jobs.library, model, body.text, body.silence, body.hide, owner=owner)
    return JSON(await jobs.run_model(request, function))


# --- Answers ---------------------------------------------------------------------------------------------------------

ALTERNATIVES = 8
"""Most likely next tokens that are listed for each step of a translation."""
PIXELS = 512
"""Along a side of the picture that is sent back: a square, as the model reads it; the page gives it its proportions."""
POINTS = 800
"""Of a waveform."""


@torch.no_grad()
def translation(library: Library, model: ModelEntry, text: str, beams: int) -> dict[str, Any]:
    """A translation, its alignment weights, and for each step the alternatives and the beam."""
    loaded = library.loaded(model)
    network = loaded.model
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
    }


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
