"""`regard serve`: a translator or a text classifier over HTTP, computing the texts of many requests together.

A model computes 32 sentences in little more time than one. So the texts that arrive within a few milliseconds, or while
a batch is computed, become a batch.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, Field
from starlette.middleware.gzip import GZipMiddleware

from . import __version__
from .decoding import classification, model_folders, translation
from .decoding.beam import before_each_step
from .decoding.classification import classify
from .decoding.translation import read, translate
from .seeing.align import translation_word_weights
from .viewer.guard import LOOPBACK, ClientDisconnected, Guard, RequestError
from .viewer.responses import ERRORS, JSON
from .viewer.server import add_error_handlers
from .viewer.tiles import unless_disconnected
from .wording import count_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from torch import Tensor

    from .decoding.model_folders import PrecisionName

BODY = 1 << 20
"""Bytes of a request."""
TEXTS = 256
"""Texts of a request."""
CHARACTERS = 5_000
"""Of a text."""
BEAMS = 16
ALIGNED = 1 << 14
"""Source tokens of a request for alignments: each token has at most 256 weights, of about 8 bytes."""
SECONDS = 60.0
"""A request that is not answered after so long gets a 503."""
LONG = 64
"""Source tokens above which a text is long: its search may take most of the 256 steps that a search has."""
SPEED = 500
"""Source tokens × beams that a slow machine searches in a second: what a text counts for in the order of texts."""


@dataclass(frozen=True)
class Settings:
    """What the texts of a batch have in common. `beams` and `best` are of translations."""

    beams: int = 1
    best: int = 1
    weights: bool = False


class ServedModel:
    """A translator or a text classifier: a run, a model's folder, or one that ships."""

    def __init__(
        self, name: str, device: str = "cpu", engine: str = "torch", precision: PrecisionName = "float32"
    ) -> None:
        self.name = name
        tasks = {"translate": translation, "classify": classification}
        self.loaded = model_folders.load(name, device, engine, wanted=tuple(tasks), precision=precision)
        self.task: str = self.loaded.model.task
        if self.loaded.tokenizers.source.kind != "text":
            raise ValueError(f"{name} reads {self.loaded.tokenizers.source.kind}; `regard serve` serves models of text")
        self.batch_tokens: int = tasks[self.task].batch_tokens(self.loaded.model)
        self.attends = engine == "torch"  # other engines keep no weights
        own = self.task == "translate" and self.attends
        self.engine: Any = translation.ModelEngine(self.loaded.model) if own else self.loaded.model  # for all batches
        self.threads = 1 if device.startswith("cuda") else 2  # a GPU's searches are recorded by one thread

    def lengths(self, texts: list[str]) -> list[int]:
        """The source tokens of each text; a 422 for one that cannot be read."""
        sources, reasons = read(self.loaded.tokenizers.source, texts)
        for number, source in enumerate(sources):
            if source is None:
                why = reasons.get(number, "holds no token of this model")
                raise RequestError(422, f"texts.{number}: the text {why}")
        return [len(source) for source in sources if source is not None]

    def __call__(self, texts: list[str], settings: Settings) -> list[dict[str, Any]]:
        """An answer for each text."""
        tokenizers = self.loaded.tokenizers
        if self.task == "classify":
            labelled = classify(self.loaded.model, tokenizers, texts, weights=settings.weights)
            return [_labelled(each, tokenizers, settings) for each in labelled]
        how: Any = {**self.loaded.search, "beams": settings.beams, "best": settings.best}
        how["weights"] = settings.weights and "first"  # those of other hypotheses are not asked for, and take gigabytes
        how["tokens"] = self.batch_tokens
        return [_translated(each, settings) for each in translate(self.engine, tokenizers, texts, **how)]


def _translated(result: translation.Translation, settings: Settings) -> dict[str, Any]:
    several = zip(result.texts, result.hypotheses, strict=True)
    hypotheses = [{"text": text, "score": round(hypothesis.score, 5)} for text, hypothesis in several]
    answer: dict[str, Any] = {**hypotheses[0], "source": result.source}
    if settings.best > 1:
        answer["hypotheses"] = hypotheses
    if settings.weights:
        answer["alignment"] = None
    if result.weights is not None and len(result.source_tokens) > 1:
        weights, target, source = translation_word_weights(result)
        answer["alignment"] = {"source": source, "target": target, "weights": _rounded(weights)}
    return answer


def _labelled(result: classification.Classification, tokenizers: Any, settings: Settings) -> dict[str, Any]:
    probabilities = {label: round(share, 5) for label, share in result.probabilities.items()}
    answer: dict[str, Any] = {"label": result.label, "probabilities": probabilities, "source": result.source}
    if settings.weights:
        answer["alignment"] = None
    if result.weights is not None:
        pieces = tokenizers.source.pieces([int(number) for number in result.numbers])
        answer["alignment"] = {"source": pieces, "weights": _rounded(result.weights)}
    return answer


def _rounded(weights: Tensor) -> list[Any]:
    rounded: list[Any] = weights.double().mul(10**5).round().div(10**5).tolist()
    return rounded


@dataclass(eq=False)
class WaitingText:
    text: str
    tokens: int
    settings: Settings
    due: float
    """When it would be computed if its request were alone."""
    answer: asyncio.Future[Any]


class Batches:
    """Computes texts in batches of at most `size`, and of as many tokens, padding counted, as suit the model.

    The first text of a batch waits `wait` seconds; `room` texts may wait. They are computed in the order in which they
    are due: a small request passes a large one, whose later texts are due later, and nothing is passed for ever. A
    thread of its own computes the long texts: others never wait for them.
    """

    def __init__(
        self, model: ServedModel, metrics: Metrics, *, batch: int = 64, wait: float = 0.005, queue: int = 1024
    ) -> None:
        self.model, self.metrics, self.size, self.wait, self.room = model, metrics, batch, wait, queue
        self.queues: list[list[WaitingText]] = [[] for _ in range(model.threads)]
        self.changed = [asyncio.Event() for _ in self.queues]
        metrics.waiting.set_function(lambda: self.waiting)

    @property
    def waiting(self) -> int:
        return sum(not text.answer.done() for queue in self.queues for text in queue)

    def submit(self, texts: list[str], lengths: list[int], settings: Settings) -> list[asyncio.Future[Any]]:
        """The answer to each text, in the future; a RequestError where the queue has no room for all of them."""
        if len(texts) > self.room:
            given = f"{count_of(len(texts), 'text')}, and the queue of this server has room for {self.room}"
            raise RequestError(422, f"texts: {given}; send fewer")
        if self.waiting + len(texts) > self.room:
            held = f"its queue has {count_of(self.waiting, 'text')}, and room for {self.room}"
            raise RequestError(503, f"the server is busy: {held}; try again later")
        due, answers = time.monotonic(), [asyncio.get_running_loop().create_future() for _ in texts]
        for n in sorted(range(len(texts)), key=lengths.__getitem__):  # those of like length need little padding
            due += lengths[n] * settings.beams / SPEED
            thread = -1 if lengths[n] > LONG else 0
            self.queues[thread].append(WaitingText(texts[n], lengths[n], settings, due, answers[n]))
            self.changed[thread].set()
        return answers

    async def run(self, thread: int) -> None:
        """Compute what comes, until cancelled."""
        while True:
            await self.changed[thread].wait()
            if len(self.queues[thread]) < self.size:
                await asyncio.sleep(self.wait)  # others may come
            if batch := self._next_batch(thread):
                await self._compute(batch)
            else:
                self.changed[thread].clear()

    def _next_batch(self, thread: int) -> list[WaitingText]:
        """The text that is due first, and those after it that have its settings and fit; a client may have gone."""
        waiting = sorted((x for x in self.queues[thread] if not x.answer.done()), key=lambda x: x.due)
        batch, room = waiting[:1], self.model.batch_tokens
        for text in waiting[1:]:
            tokens = max(x.tokens for x in (*batch, text)) * (len(batch) + 1)
            fits = tokens * max(1, text.settings.beams / 5) <= room and len(batch) < self.size
            if fits and text.settings == batch[0].settings:
                batch.append(text)
        self.queues[thread] = [text for text in waiting if text not in batch]
        return batch

    async def _compute(self, batch: list[WaitingText]) -> None:
        began = time.perf_counter()
        answers = await asyncio.to_thread(self._answers, batch)
        self.metrics.texts.inc(len(batch))
        self.metrics.sizes.observe(len(batch))
        self.metrics.batch_seconds.observe(time.perf_counter() - began)
        for text, answer in zip(batch, answers, strict=True):
            if not text.answer.done():
                set_it = text.answer.set_exception if isinstance(answer, Exception) else text.answer.set_result
                set_it(answer)

    def _answers(self, batch: list[WaitingText]) -> Sequence[Any]:
        """An answer or an exception for each text. If a batch fails, each of its texts is computed alone."""

        def stop_if_left() -> None:
            if all(text.answer.done() for text in batch):
                raise ClientDisconnected

        try:
            with before_each_step(stop_if_left):
                return self.model([text.text for text in batch], batch[0].settings)
        except BaseException as error:  # a panic of an extension in Rust is no Exception, and would end the event loop
            if len(batch) > 1 and not isinstance(error, ClientDisconnected):
                return [answer for text in batch for answer in self._answers([text])]
            stopped = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            return [stopped] * len(batch)


class Metrics:
    """What `GET /metrics` reports."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"namespace": "regard", "registry": self.registry}
        self.requests = Counter("requests_total", "Answers by route and status", ("route", "status"), **named)
        self.seconds = Histogram("request_seconds", "From a request for texts to its answer", **named)
        self.texts = Counter("texts_total", "Texts computed", **named)
        self.waiting = Gauge("queue_length", "Texts that wait or are computed", **named)
        self.sizes = Histogram("batch_size", "Texts of a batch", buckets=[2**n for n in range(9)], **named)
        self.batch_seconds = Histogram("batch_seconds", "To compute a batch", **named)

    def observe_request(self, path: str, status: int, seconds: float, *, task: str) -> None:
        route = path if path in (task, "/health", "/metrics", "/openapi.json") else "other"
        self.requests.labels(route, status).inc()
        if path == task:
            self.seconds.observe(seconds)


Text = Annotated[str, Field(min_length=1, max_length=CHARACTERS, pattern=r"\S")]


class TextsRequest(BaseModel):
    """Texts, which are computed together with those of other requests."""

    model_config = {"extra": "forbid"}
    texts: list[Text] = Field(min_length=1, max_length=TEXTS)
    alignment: bool = Field(default=False, description="whether the attention weights are returned")


class TranslationRequest(TextsRequest):
    beams: int = Field(0, ge=0, le=BEAMS, description="0: as many as the model's recipe says, or `best` if more")
    best: int = Field(1, ge=1, le=BEAMS, description="how many translations of each text, at most `beams`")


def create_serve_app(
    model: ServedModel, hosts: frozenset[str] = LOOPBACK, token: str | None = None, port: int = 0, **limits: Any
) -> FastAPI:
    """The application; `limits` are those of `Batches`."""
    metrics = Metrics()
    batches = Batches(model, metrics, **limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(batches.run(thread)) for thread in range(model.threads)]
        yield
        for task in tasks:
            task.cancel()

    async def respond(request: Request, name: str, texts: list[str], settings: Settings) -> Response:
        if settings.weights and not model.attends:
            refusal = "the engine of this server keeps no attention weights; use --engine torch"
            raise RequestError(422, f"alignment: {refusal}")
        lengths = await asyncio.to_thread(model.lengths, texts)
        if settings.weights and sum(lengths) > ALIGNED:
            refusal = f"these texts have {sum(lengths):,} tokens, and alignments are given of {ALIGNED:,} at a time"
            raise RequestError(422, f"alignment: {refusal}; send fewer texts, or leave out alignment")
        answers = batches.submit(texts, lengths, settings)
        try:
            async with asyncio.timeout(SECONDS):
                computed = await unless_disconnected(request, asyncio.gather(*answers))
        except TimeoutError:
            done = sum(answer.done() and not answer.cancelled() for answer in answers)
            reason = f"{done} of {count_of(len(texts), 'text')} computed within {SECONDS:.0f} seconds"
            advice = "the server is busy, or the request too large: try again later, or send fewer or shorter texts"
            raise RequestError(503, f"{reason}; {advice}") from None
        finally:
            for answer in answers:
                answer.cancel()
        return await asyncio.to_thread(JSON, {name: computed})  # a million weights take about a second

    async def translations(request: Request, body: TranslationRequest) -> Response:
        """Translations of texts, with the attention weights between their words if `alignment` is true."""
        if 0 < body.beams < body.best:
            reason = f"best: {body.best} is more than beams, which is {body.beams}; give more beams, or leave them out"
            raise RequestError(422, reason)
        beams = body.beams or max(model.loaded.search.get("beams", 5), body.best)
        return await respond(request, "translations", body.texts, Settings(beams, body.best, body.alignment))

    async def classifications(request: Request, body: TextsRequest) -> Response:
        """Labels of texts, with the weight of every token if `alignment` is true."""
        return await respond(request, "classifications", body.texts, Settings(weights=body.alignment))

    async def health() -> Response:
        """Whether texts are computed; needs no token."""
        return JSON({"status": "ok", "model": model.name, "task": model.task})

    async def report_metrics() -> Response:
        """Counters and histograms in the text format of Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    app = FastAPI(
        title=f"regard serve {model.name}",
        version=__version__,
        description=f"Texts for `{model.name}`, computed in batches.",
        docs_url=None,  # both pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.model = model
    refusals = (403, 421) if token is None else (401, 403, 421)
    post: Callable[..., Any] = translations if model.task == "translate" else classifications
    for method, path, function, statuses in (
        ("POST", f"/{model.task}", post, (*refusals, 413, 422, 500, 503)),
        ("GET", "/health", health, (403, 421)),
        ("GET", "/metrics", report_metrics, refusals),
    ):
        errors: dict[int | str, Any] = {status: ERRORS[status] for status in statuses}
        app.add_api_route(path, function, methods=[method], response_model=dict[str, Any], responses=errors)
    add_error_handlers(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    guard: dict[str, Any] = {"hosts": hosts, "token": token, "port": port, "body": BODY}
    app.add_middleware(Guard, **guard, page=False, open_paths=frozenset({"/health"}))
    app.state.observe = partial(metrics.observe_request, task=f"/{model.task}")
    return app
