"""The FastAPI application: the page at `/`, the HTTP API at `/api/…`, and the responses to errors."""

from __future__ import annotations

import asyncio
import contextlib
import html
import ipaddress
import math
import mimetypes
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from .. import __version__
from ..wording import problem_sentence
from .guard import ANY_ADDRESS, LOOPBACK, ClientDisconnected, Guard, RequestError, TimedProtocol
from .model_routes import model_router
from .responses import JSON, SCRIPT, STATIC
from .tiles import Jobs
from .trace_routes import call_router, trace_router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from typing import Self

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .library import Library


mimetypes.add_type("text/javascript", ".js")  # Windows may have another, which browsers do not run


def create_app(
    library: Library,
    hosts: frozenset[str] = LOOPBACK,
    token: str | None = None,
    port: int = 0,
) -> FastAPI:
    """The application; `/api/openapi.json` describes its API. The other parameters are those of `Guard`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for _ in library.pending:
            app.state.jobs.models.submit(library.read_next_pending)
        yield
        app.state.jobs.close()

    app = FastAPI(
        title="regard",
        version=__version__,
        description="The attention of models: traces, calls, tiles, statistics, patterns, translations.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # both pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.jobs = Jobs(library)
    for router in (trace_router, call_router, model_router):
        app.include_router(router, prefix="/api")
    add_error_handlers(app)
    app.mount("/static", PageFiles(directory=STATIC))
    app.add_api_route("/", lambda: FileResponse(STATIC / "index.html"), methods=["GET"], include_in_schema=False)
    # Numbers are sent as they are: they shrink little, and the page shows them the sooner.
    plain = ("application/octet-stream",)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=6, exclude_content_types=plain)
    app.add_middleware(Guard, hosts=hosts, token=token, port=port)
    return app


class PageFiles(StaticFiles):
    """The page's files. The browser asks each time whether one has changed."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        response = super().file_response(*given, **more)
        response.headers["Cache-Control"] = "no-cache"
        if str(given[0]).endswith(Path(SCRIPT).name):
            response.headers["SourceMap"] = f"{Path(SCRIPT).name}.map"
        return response


def add_error_handlers(app: FastAPI) -> None:
    """Every error is answered as `{"error": reason}`; the traceback of an unexpected one is in the server's log."""
    for kind in (RequestError, ClientDisconnected, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _error_answer)


async def _error_answer(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return JSON({"error": str(error)}, error.status)
    if isinstance(error, ClientDisconnected):
        return Response(status_code=499)  # nginx's code for a closed connection
    if isinstance(error, RequestValidationError):
        return JSON({"error": "; ".join(_problem(problem, request) for problem in error.errors()[:5])}, 422)
    if isinstance(error, HTTPException):
        path, status = request.url.path[:80], error.status_code
        reason = f"{request.method} {path}: {error.detail}"
        if status == 400:  # FastAPI's, for a body that `json` fails on
            status, reason = 422, f"the body is not JSON: {error.__cause__}"
        elif status == 404:
            reason = f"there is no route {path!r}; GET {request.app.openapi_url} lists the routes"
        response = JSON({"error": reason}, status)
        response.headers.update(error.headers or {})
        return response
    reason = f"internal server error: {type(error).__name__}; the traceback is in the server's log"
    return JSON({"error": reason}, 500)


def _problem(problem: dict[str, Any], request: Request) -> str:
    """What is wrong with a field, or with the body as a whole."""
    place = problem["loc"]
    if problem["type"] == "json_invalid":  # its place is the character
        return f"the body is not JSON: {problem['ctx']['error']} (character {int(place[-1]) + 1})"
    if place == ("body",) and isinstance(problem.get("input"), bytes):  # FastAPI parses what is declared as JSON
        kind = request.headers.get("content-type")
        given = f"is declared as {kind:.80}" if kind else "has no Content-Type"
        return f"the body {given}; send Content-Type: application/json"
    if place == ("body",) and problem["type"] == "missing":
        return "the request has no body; send JSON"
    body = getattr(request.scope.get("route"), "body_field", None)
    keys = getattr(getattr(getattr(body, "field_info", None), "annotation", None), "model_fields", {})
    return f"{'.'.join(map(str, place[1:])) or 'the request'}: {problem_sentence(problem, keys)}"


class Answers:
    """Around an application: a request that uvicorn cuts off, as the server stops, is answered with a 503.

    `observe` is called with path, status and seconds of every answer, just before it is sent.
    """

    def __init__(self, app: ASGIApp, observe: Callable[[str, int, float], None] | None) -> None:
        self.app, self.observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, responded = time.perf_counter(), False

        async def observed_send(message: Message) -> None:
            nonlocal responded
            if message["type"] == "http.response.start":
                responded = True
                if self.observe is not None:
                    self.observe(scope["path"], message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self.app(scope, receive, observed_send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or responded:
                raise
            reason = "the server is shutting down, and could not end this request; send it again"
            await JSON({"error": reason}, 503)(scope, receive, observed_send)


CONNECTIONS = 512
"""Open connections; further ones get a 503."""
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>regard</title><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">Open the viewer</a>\n'
)


class AppServer:
    """Serves an application: binds its socket at once, so that its address is known; answers once `run` is called, or
    in a `with` block, from a thread of its own.

    `make_app` gets the names that a Host header may have, the token and the port, once the port is known to be free.
    With `token` True a new one is made. `names` are further names of the server; `drain` are the seconds that open
    requests get when it stops.
    """

    def __init__(
        self,
        make_app: Callable[[frozenset[str], str | None, int], FastAPI],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: bool | str = True,
        names: Iterable[str] = (),
        drain: float = 2.0,
    ) -> None:
        if not token and not loopback(host):
            raise ValueError(f"without a token everybody who can reach {host} could use it; leave out --no-token")
        self.token = token if isinstance(token, str) else secrets.token_urlsafe(24) if token else None
        self.drain = drain
        self._socket = _listen(host, port)
        port = self._socket.getsockname()[1]
        listening = f"[{host}]" if ":" in host else host  # IPv6
        name = socket.gethostname() if listening in ANY_ADDRESS else listening
        self.address = f"http://{name}:{port}"
        hosts = LOOPBACK | {each.lower() for each in (listening, name, *names)}
        self.app = make_app(hosts, self.token, port)
        config = uvicorn.Config(
            Answers(self.app, getattr(self.app.state, "observe", None)),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(drain),
            http=TimedProtocol,
            limit_concurrency=CONNECTIONS,
        )
        self._server = uvicorn.Server(config)
        self._closing = contextlib.ExitStack()

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a program sends with its requests."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def run(self) -> None:
        """Serve until interrupted. Connections are accepted before, and wait until this is called."""
        with self._closing, contextlib.suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(self.drain + 5)


class Server(AppServer):
    """The viewer's."""

    def __init__(
        self, library: Library, host: str = "127.0.0.1", port: int = 0, view: str = "", **options: Any
    ) -> None:
        self.view = view  # the view that the page opens; "": the page chooses
        super().__init__(partial(create_app, library), host, port, **options)

    @property
    def url(self) -> str:
        """The address to open: with the token, where there is one, and the view, where one was chosen."""
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"{self.address}/{query}" + (f"#view={self.view}" if self.view else "")

    def open(self) -> None:
        """Open the page in the default browser.

        Other users can read the command line of the browser. So it opens a file, in a folder that only this user can
        read, which leads to the page with its token. The file is removed when the server stops.
        """
        address = self.url
        if self.token is not None:
            page = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="regard-")), "open.html")
            page.write_text(REDIRECT.format(url=html.escape(self.url)), encoding="utf-8")
            address = page.as_uri()
        webbrowser.open(address)


def serving(library: Library, *, token: bool = True) -> Server:
    """`with serving(library) as server:` runs a viewer in a thread of its own. `server.headers` carry its token."""
    return Server(library, token=token)


def loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port, or leave it out"
        ) from None
