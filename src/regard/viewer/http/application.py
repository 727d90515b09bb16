"""The FastAPI application: the page at `/`, the HTTP API at `/api/…`, and the responses to errors."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ... import __version__
from ...validation_sentences import problem_sentence
from ..limits import ClientDisconnected, RequestError
from ..static_files import MEDIA_TYPES, SCRIPT, files
from .guard import LOOPBACK, Guard
from .request_computations import Jobs
from .responses import _compress, json_response
from .routes import call_routes, contribution_routes, experiment_routes, model_routes, trace_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..data.library import Library

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
    for routes in (trace_routes, call_routes, contribution_routes, model_routes, experiment_routes):
        app.include_router(routes.router, prefix="/api")
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
    data, headers = _compress(path.read_bytes(), request, level=6)
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
