"""The FastAPI application: the page at `/`, the HTTP API at `/api/…`, and the responses to errors."""

from __future__ import annotations

import contextlib
import html
import ipaddress
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from .. import __version__
from ..messages import problem_sentence
from . import guard
from .guard import LOOPBACK, ClientDisconnected, Guard, RequestError
from .jobs import Jobs
from .model_routes import experiment_router, model_router
from .responses import MEDIA_TYPES, SCRIPT, compress, files, json_response
from .trace_routes import call_router, contribution_router, trace_router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from .library import Library

NO_CACHE = {"Cache-Control": "no-cache"}


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
        separate_input_output_schemas=False,
    )
    app.state.jobs = Jobs(library)
    for router in (trace_router, call_router, contribution_router, model_router, experiment_router):
        app.include_router(router, prefix="/api")
    add_error_handlers(app)
    app.add_api_route("/", _index, methods=["GET"], include_in_schema=False)
    app.add_api_route("/static/{name:path}", _static_file, methods=["GET"], include_in_schema=False)
    app.add_middleware(Guard, hosts=hosts, token=token, port=port)
    return app


def add_error_handlers(app: FastAPI) -> None:
    """Every error is answered as `{"error": reason}`."""
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(ClientDisconnected, _disconnected)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _server_error)


async def _index(request: Request) -> Response:
    return await _static_file("index.html", request)


async def _static_file(name: str, request: Request) -> Response:
    path = files().get(name)
    if path is None:
        raise RequestError(404, f"the page has no file {name[:80]!r}")
    data, headers = compress(path.read_bytes(), request, level=6)
    if name == SCRIPT:
        headers["SourceMap"] = f"{path.name}.map"
    return Response(data, 200, headers | NO_CACHE, MEDIA_TYPES[path.suffix])


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return json_response({"error": str(error)}, request, error.status)


async def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nginx's code for a closed connection


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        reason = f"there is no route {request.url.path[:80]!r}; GET {request.app.openapi_url} lists the routes"
    elif error.status_code == 400:  # FastAPI's, for a body that `json` fails on in another way than by its syntax
        return json_response({"error": f"the body is not JSON: {_unreadable(error.__cause__)}"}, request, 422)
    else:
        reason = f"{request.method} {request.url.path[:80]}: {error.detail}"
    response = json_response({"error": reason}, request, error.status_code)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _server_error(request: Request, error: Exception) -> Response:
    """An unexpected exception. Its traceback is in the server's log, not in the response."""
    reason = f"internal server error: {type(error).__name__}; the traceback is in the server's log"
    return json_response({"error": reason}, request, 500)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [_problem(problem, request) for problem in error.errors()[:5]]
    return json_response({"error": "; ".join(problems)}, request, 422)


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


def _unreadable(error: BaseException | None) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it cannot be read"


AnyServer = TypeVar("AnyServer", bound="AppServer")
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>regard</title><meta http-equiv="refresh" content="0; url={url}">'
    '<a href="{url}">Open the viewer</a>\n'
)
SHUTDOWN = 2
"""Seconds that open requests get when the server stops."""


class AppServer:
    """Serves an application: binds its socket at once, so that its address is known; answers once `run` is called.

    `make_app` gets the names that a Host header may have, the token and the port. With `token` True a new one is made.
    """

    def __init__(
        self,
        make_app: Callable[[frozenset[str], str | None, int], FastAPI],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: bool | str = True,
    ) -> None:
        if not token and not loopback(host):
            raise ValueError(f"without a token everybody who can reach {host} could use it; leave out --no-token")
        self.token = token if isinstance(token, str) else secrets.token_urlsafe(24) if token else None
        any_address = host in ("0.0.0.0", "::")
        hosts = frozenset() if any_address else LOOPBACK | {host.lower(), f"[{host.lower()}]"}
        self._socket = _listen(host, port)
        self.app = make_app(hosts, self.token, self._socket.getsockname()[1])
        name = socket.gethostname() if any_address else host
        name = f"[{name}]" if ":" in name else name  # IPv6
        self.address = f"http://{name}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            self.app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN,
            **guard.options(),
        )
        self._server = uvicorn.Server(config)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a program sends with its requests."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until interrupted; `ready` is called once requests are accepted."""
        if ready is not None:
            threading.Thread(target=self._call_when_started, args=(ready,), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])

    def _call_when_started(self, ready: Callable[[], None]) -> None:
        while not self._server.started:
            if self._server.should_exit:
                return
            time.sleep(0.02)
        ready()

    def stop(self) -> None:
        self._server.should_exit = True


class Server(AppServer):
    """The viewer's."""

    def __init__(
        self, library: Library, host: str = "127.0.0.1", port: int = 0, view: str = "", *, token: bool = True
    ) -> None:
        self.view = view  # the view that the page opens; "": the page chooses
        self._opening: tempfile.TemporaryDirectory[str] | None = None
        super().__init__(partial(create_app, library), host, port, token=token)

    @property
    def url(self) -> str:
        """The address to open: with the token, where there is one, and the view, where one was chosen."""
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"{self.address}/{query}" + (f"#view={self.view}" if self.view else "")

    def run(self, ready: Callable[[], None] | None = None) -> None:
        try:
            super().run(ready)
        finally:
            if self._opening is not None:
                self._opening.cleanup()

    def open(self) -> None:
        """Open the page in the default browser.

        Other users can read the command line of the browser. So it opens a file, in a folder that only this user can
        read, which leads to the page with its token. The file is removed when the server stops.
        """
        address = self.url
        if self.token is not None:
            self._opening = tempfile.TemporaryDirectory(prefix="regard-")
            page = Path(self._opening.name, "open.html")
            page.write_text(REDIRECT.format(url=html.escape(self.url)), encoding="utf-8")
            address = page.as_uri()
        webbrowser.open(address)


@contextlib.contextmanager
def serving(library: Library, *, token: bool = True) -> Iterator[Server]:
    """Run a viewer's server in a thread of its own while the block runs. `server.headers` carry its token."""
    with running(Server(library, token=token)) as server:
        yield server


@contextlib.contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """Run a server in a thread of its own while the block runs."""
    started = threading.Event()
    thread = threading.Thread(target=server.run, args=(started.set,), daemon=True)
    thread.start()
    try:
        if not started.wait(30):
            raise OSError(f"the server at {server.address} did not start within 30 seconds")
        yield server
    finally:
        server.stop()
        thread.join(SHUTDOWN + 5)


def loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}; choose another --port, or leave it out"
        ) from None
    return listener
