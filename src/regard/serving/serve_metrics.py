"""The metrics of `regard serve`, and the middleware that counts every request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .prometheus_metrics import SECONDS, SIZES, CounterMetric, HistogramMetric, gauge_lines

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ServeMetrics:
    """What `GET /metrics` reports."""

    def __init__(self) -> None:
        self.requests = CounterMetric("regard_requests_total", "Requests by route and status.", ["route", "status"])
        self.texts = CounterMetric("regard_texts_total", "Texts that were computed.")
        self.seconds = HistogramMetric("regard_request_seconds", "Time from request to answer.", SECONDS)
        self.sizes = HistogramMetric("regard_batch_size", "Texts in a batch.", SIZES)
        self.computing = HistogramMetric("regard_batch_seconds", "Time that the model took for a batch.", SECONDS)

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
