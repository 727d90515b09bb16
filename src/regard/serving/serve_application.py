"""The FastAPI application of `regard serve`: one route for the model's task, health, metrics, OpenAPI."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from .. import __version__
from ..noun_count import count_of
from ..viewer.http.application import add_error_handlers
from ..viewer.http.guard import LOOPBACK, Guard
from ..viewer.http.responses import json_response
from ..viewer.http.routes.route_parameters import ERRORS
from ..viewer.limits import RequestError
from . import serve_limits
from .dynamic_batches import DynamicBatches, QueuedRequest, QueueFullError, TooManyTextsError
from .prometheus_metrics import CONTENT_TYPE
from .serve_metrics import RequestCounter, ServeMetrics
from .served_model import RefusedTextError, ServedModel, ServeSettings, alignment_size, listed_alignment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Text = Annotated[str, Field(min_length=1, max_length=serve_limits.CHARACTERS, pattern=r"\S")]
METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
FEWER = "send fewer or shorter texts in a request, or leave out alignment"


class TextsRequest(BaseModel):
    """Texts, which are computed together with those of other requests."""

    model_config = {"extra": "forbid"}
    texts: list[Text] = Field(min_length=1, max_length=serve_limits.TEXTS)
    alignment: bool = Field(default=False, description="whether the attention weights are returned")


class TranslationRequest(TextsRequest):
    beams: int = Field(
        default=0, ge=0, le=serve_limits.BEAMS, description="0: as many as the model's recipe says, or `best` if more"
    )
    best: int = Field(
        default=1, ge=1, le=serve_limits.BEAMS, description="how many translations of each text, at most `beams`"
    )

    @field_validator("best")
    @classmethod
    def at_most_beams(cls, best: int, info: ValidationInfo) -> int:
        beams = info.data.get("beams", 0)  # missing where it is invalid itself
        if 0 < beams < best:
            raise ValueError(f"{best} is more than beams, which is {beams}; give more beams, or leave them out")
        return best


class Alignment(BaseModel):
    """Words, and a row of weights over the words of the source for each word of the target.

    A classifier has no target: `weights` is one row, over the pieces of its tokenizer.
    """

    source: list[str]
    target: list[str] | None = None
    weights: list[list[float]] | list[float]


class ScoredText(BaseModel):
    text: str
    score: float


class TranslatedText(ScoredText):
    source: str
    hypotheses: list[ScoredText] | None = None
    alignment: Alignment | None = None


class Translations(BaseModel):
    """One entry for each text, in order."""

    translations: list[TranslatedText]


class LabelledText(BaseModel):
    source: str
    label: str
    probabilities: dict[str, float]
    alignment: Alignment | None = None


class Labels(BaseModel):
    """One entry for each text, in order."""

    classifications: list[LabelledText]


class Health(BaseModel):
    status: str
    model: str
    task: str


def timeout_reason(request: QueuedRequest, seconds: float) -> str:
    """Why a request has no answer after so long: it was too large, or other requests took the time."""
    given = f"{request.computed} of {count_of(len(request.texts), 'text')} computed within {seconds:.0f} seconds"
    if request.larger_than(seconds):
        return f"the request is too large: {given}; send fewer or shorter texts in a request"
    return f"the server is busy with other requests: {given}; try again later"


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: ERRORS[status] for status in statuses}


def create_serve_app(
    model: ServedModel,
    hosts: frozenset[str] = LOOPBACK,
    token: str | None = None,
    port: int = 0,
    *,
    batch: int = 64,
    wait: float = 0.005,
    queue: int = 1024,
) -> FastAPI:
    """The application. `batch`, `wait` (in seconds) and `queue` are those of `DynamicBatches`."""
    metrics = ServeMetrics()
    batches = DynamicBatches(
        model, size=batch, wait=wait, room=queue, tokens=model.batch_tokens, observe=metrics.observe_batch
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batches.close)

    app = FastAPI(
        title=f"regard serve {model.name}",
        version=__version__,
        description=f"Texts for `{model.name}`, computed in batches.",
        openapi_url="/openapi.json",
        docs_url=None,  # both pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    app.state.batches = batches

    async def answers(texts: list[str], settings: ServeSettings) -> list[Any]:
        if settings.weights and not model.attends:
            raise RequestError(
                422, "alignment: the engine of this server keeps no attention weights; use --engine torch"
            )
        lengths = await asyncio.to_thread(model.lengths, texts)
        if settings.weights:
            possible = model.possible_weights(lengths)
            if possible > serve_limits.POSSIBLE_WEIGHTS:
                raise RequestError(
                    422,
                    f"alignment: these texts may have {possible:,} weights, and more than "
                    f"{serve_limits.POSSIBLE_WEIGHTS:,} are not computed: {FEWER}",
                )
        try:
            queued = batches.submit(texts, settings, lengths)
        except TooManyTextsError as error:
            raise RequestError(422, f"texts: {error}") from None
        except QueueFullError as error:
            raise RequestError(503, str(error)) from None
        waiting = asyncio.gather(*map(asyncio.wrap_future, queued.results), return_exceptions=True)
        try:
            results = await asyncio.wait_for(waiting, serve_limits.SECONDS)
        except TimeoutError:
            raise RequestError(503, timeout_reason(queued, serve_limits.SECONDS)) from None
        computed: list[dict[str, Any]] = []
        for number, result in enumerate(results):
            if isinstance(result, RefusedTextError):
                raise RequestError(422, f"texts.{number}: the text {result}")
            if isinstance(result, BaseException):
                raise result
            computed.append(result)
        count = sum(map(alignment_size, computed))
        if count > serve_limits.WEIGHTS:
            raise RequestError(
                422,
                f"alignment: these texts have {count:,} weights; an answer has at most {serve_limits.WEIGHTS:,}: "
                f"{FEWER}",
            )
        return computed

    async def respond(name: str, texts: list[str], settings: ServeSettings, request: Request) -> Response:
        """The answers as JSON. A million weights take about a second, in which other requests are served."""
        computed = await answers(texts, settings)
        return await asyncio.to_thread(lambda: json_response({name: list(map(listed_alignment, computed))}, request))

    async def translate(request: Request, body: TranslationRequest) -> Response:
        """Translations of texts, with the attention weights between their words if `alignment` is true."""
        settings = ServeSettings(body.beams, body.best, body.alignment)
        return await respond("translations", body.texts, settings, request)

    async def classify(request: Request, body: TextsRequest) -> Response:
        """Labels of texts, with the weight of every token if `alignment` is true."""
        settings = ServeSettings(weights=body.alignment)
        return await respond("classifications", body.texts, settings, request)

    async def health(request: Request) -> Response:
        """Whether texts are computed; needs no token."""
        if not batches.alive:
            raise RequestError(503, "the thread that computes batches has ended; restart the server")
        return json_response({"status": "ok", "model": model.name, "task": model.task}, request)

    async def report_metrics() -> Response:
        """Counters and histograms in the text format of Prometheus."""
        return Response(metrics.text(batches.waiting), media_type=CONTENT_TYPE)

    route, function, shape = {
        "translate": ("/translate", translate, Translations),
        "classify": ("/classify", classify, Labels),
    }[model.task]
    guarded = (403, 413, 421) if token is None else (401, 403, 413, 421)
    app.add_api_route(
        route, function, methods=["POST"], response_model=shape, responses=_errors(*guarded, 422, 500, 503)
    )
    app.add_api_route("/health", health, methods=["GET"], response_model=Health, responses=_errors(403, 413, 421, 503))
    app.add_api_route(
        "/metrics", report_metrics, methods=["GET"], response_class=Response, responses={**METRICS, **_errors(*guarded)}
    )
    add_error_handlers(app)

    app.add_middleware(
        Guard,
        hosts=hosts,
        token=token,
        port=port,
        command="regard serve",
        page=False,
        open_paths=frozenset({"/health"}),
        body_limit=lambda path: serve_limits.BODY,
    )
    app.add_middleware(
        RequestCounter,
        metrics=metrics,
        task_route=route,
        routes=frozenset({"/health", "/metrics", "/openapi.json"}),
    )
    return app
