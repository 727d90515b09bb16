"""Limits of one request to `regard serve`."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from .. import __version__
from ..messages import count_of
from ..viewer.guard import LOOPBACK, Guard, RequestError
from ..viewer.responses import ERRORS, json_response
from ..viewer.server import add_error_handlers
from .batches import (
    DynamicBatches,
    QueuedRequest,
    QueueFullError,
    RefusedTextError,
    ServedModel,
    ServeSettings,
    TooManyTextsError,
    alignment_size,
    listed_alignment,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = 1 << 20
"""Bytes of a request."""
TEXTS = 256
"""Texts of a request."""
CHARACTERS = 5_000
"""Of a text."""
BEAMS = 16
WEIGHTS = 1_000_000
"""Attention weights of an answer, about 8 bytes each: 256 texts of 60 words have as many."""
POSSIBLE_WEIGHTS = 16 * WEIGHTS
"""Weights of an answer whose outputs are as long as the search allows; with more, the request is not computed."""
SECONDS = 60.0
"""A request that is not answered after so long gets a 503."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class CounterMetric:
    """A number that only grows, for each combination of labels."""

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name, self.about, self.labels = name, about, labels
        self._counts: Counter[tuple[str, ...]] = Counter() if labels else Counter({(): 0})
        self._lock = threading.Lock()

    def add(self, *values: str, amount: int = 1) -> None:
        """One value for each label."""
        with self._lock:
            self._counts[values] += amount

    def lines(self) -> list[str]:
        with self._lock:
            counts = sorted(self._counts.items())
        named = [(dict(zip(self.labels, values, strict=True)), count) for values, count in counts]
        return [*_head(self.name, self.about, "counter"), *(f"{self.name}{_labels(at)} {n}" for at, n in named)]


class HistogramMetric:
    """How many observations were at most each of `bounds`."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, count = _head(self.name, self.about, "histogram"), 0
        for bound, each in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
            count += each
            lines.append(f"{self.name}_bucket{_labels({'le': bound})} {count}")
        return [*lines, f"{self.name}_sum {total:.6f}", f"{self.name}_count {count}"]


def gauge_lines(name: str, about: str, value: float) -> list[str]:
    """A number that rises and falls."""
    return [*_head(name, about, "gauge"), f"{name} {value}"]


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _labels(values: dict[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in values.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if values else ""


class ServeMetrics:
    """What `GET /metrics` reports."""

    def __init__(self) -> None:
        self.requests = CounterMetric("regard_requests_total", "Requests by route and status.", ["route", "status"])
        self.texts = CounterMetric("regard_texts_total", "Texts that were computed.")
        self.seconds = HistogramMetric("regard_request_seconds", "Time from request to answer.", LATENCIES)
        self.sizes = HistogramMetric("regard_batch_size", "Texts in a batch.", SIZES)
        self.computing = HistogramMetric("regard_batch_seconds", "Time that the model took for a batch.", LATENCIES)

    def observe_batch(self, texts: int, seconds: float) -> None:
        self.texts.add(amount=texts)
        self.sizes.observe(texts)
        self.computing.observe(seconds)

    def text(self, waiting: int) -> str:
        parts = [part.lines() for part in (self.requests, self.texts, self.seconds, self.sizes, self.computing)]
        parts.append(gauge_lines("regard_queue_length", "Texts that wait for their batch.", waiting))
        return "\n".join(line for lines in parts for line in lines) + "\n"


class RequestCounter:
    """ASGI middleware around all others, so that the requests that they refuse are counted too.

    `task_route` is the route whose time is measured; requests for a path that is neither it nor one of `routes` are
    counted as "other". An application that raises an error before it responds counts as 500, which Starlette answers.
    """

    def __init__(self, app: ASGIApp, metrics: ServeMetrics, task_route: str, routes: frozenset[str]) -> None:
        self.app, self.metrics, self.task_route, self.routes = app, metrics, task_route, routes | {task_route}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, responded = time.perf_counter(), False

        def count(status: int) -> None:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.metrics.requests.add(route, str(status))
            if route == self.task_route:
                self.metrics.seconds.observe(time.perf_counter() - began)

        async def counted_send(message: Message) -> None:
            nonlocal responded
            if message["type"] == "http.response.start":
                responded = True
                count(message["status"])  # before it is sent: who has the answer finds it in the metrics
            await send(message)

        try:
            await self.app(scope, receive, counted_send)
        except BaseException:
            if not responded:
                count(500)
            raise


Text = Annotated[str, Field(min_length=1, max_length=CHARACTERS, pattern=r"\S")]
METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
FEWER = "send fewer or shorter texts in a request, or leave out alignment"


class TextsRequest(BaseModel):
    """Texts, which are computed together with those of other requests."""

    model_config = {"extra": "forbid"}
    texts: list[Text] = Field(min_length=1, max_length=TEXTS)
    alignment: bool = Field(default=False, description="whether the attention weights are returned")


class TranslationRequest(TextsRequest):
    beams: int = Field(
        default=0, ge=0, le=BEAMS, description="0: as many as the model's recipe says, or `best` if more"
    )
    best: int = Field(default=1, ge=1, le=BEAMS, description="how many translations of each text, at most `beams`")

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
            if possible > POSSIBLE_WEIGHTS:
                raise RequestError(
                    422,
                    f"alignment: these texts may have {possible:,} weights, and more than "
                    f"{POSSIBLE_WEIGHTS:,} are not computed: {FEWER}",
                )
        try:
            queued = batches.submit(texts, settings, lengths)
        except TooManyTextsError as error:
            raise RequestError(422, f"texts: {error}") from None
        except QueueFullError as error:
            raise RequestError(503, str(error)) from None
        waiting = asyncio.gather(*map(asyncio.wrap_future, queued.results), return_exceptions=True)
        try:
            results = await asyncio.wait_for(waiting, SECONDS)
        except TimeoutError:
            raise RequestError(503, timeout_reason(queued, SECONDS)) from None
        computed: list[dict[str, Any]] = []
        for number, result in enumerate(results):
            if isinstance(result, RefusedTextError):
                raise RequestError(422, f"texts.{number}: the text {result}")
            if isinstance(result, BaseException):
                raise result
            computed.append(result)
        count = sum(map(alignment_size, computed))
        if count > WEIGHTS:
            raise RequestError(
                422,
                f"alignment: these texts have {count:,} weights; an answer has at most {WEIGHTS:,}: {FEWER}",
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
        body_limit=lambda path: BODY,
    )
    app.add_middleware(
        RequestCounter,
        metrics=metrics,
        task_route=route,
        routes=frozenset({"/health", "/metrics", "/openapi.json"}),
    )
    return app
