"""App: the HTTP API of the viewer, and its page."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from ... import __version__
from ..static_files import MEDIA_TYPES, STATIC, STYLES, files, styles
from .guard import LOOPBACK, Guard
from .jobs import Jobs
from .responses import ClientDisconnected, RequestError, json_response
from .routes import call_routes, model_routes, trace_routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from ..data.library import Library

NO_CACHE = {"Cache-Control": "no-cache"}


def create_app(library: Library, hosts: frozenset[str] = LOOPBACK, token: str | None = None) -> FastAPI:
    """The application: `/` is the page, `/api/…` what it asks, described at `/api/openapi.json`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for _ in library.coming:
            app.state.jobs.models.submit(library.catch_up)
        yield
        app.state.jobs.close()

    app = FastAPI(
        title="regard",
        version=__version__,
        description="The attention of models: traces, calls, tiles, statistics, patterns, translations.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # both come with scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
    )
    app.state.jobs = Jobs(library)
    for routes in (trace_routes, call_routes, model_routes):
        app.include_router(routes.router, prefix="/api")
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(ClientDisconnected, _gone)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _status)
    app.add_exception_handler(Exception, _broken)
    app.add_api_route("/", _page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/static/{name:path}", _file, methods=["GET"], include_in_schema=False)
    app.add_middleware(Guard, hosts=hosts, token=token)
    return app


async def _page() -> Response:
    return _sent(STATIC / "index.html")


async def _file(name: str) -> Response:
    if name == STYLES:
        return Response(styles(), media_type=MEDIA_TYPES[".css"], headers=NO_CACHE)
    path = files().get(name)
    if path is None:
        raise RequestError(404, f"the page has no file {name[:80]!r}")
    return _sent(path)


def _sent(path: Path) -> Response:
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers=NO_CACHE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return json_response({"error": str(error)}, request, error.status)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = {404: f"there is nothing at {request.url.path[:80]!r}; GET /api/openapi.json says what there is"}
    told = why.get(error.status_code, f"{request.method} {request.url.path[:80]}: {error.detail}")
    answer = json_response({"error": told}, request, error.status_code)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _broken(request: Request, error: Exception) -> Response:
    """What nobody foresaw. Where it happened is in the server's log, not in the answer."""
    return json_response(
        {"error": f"the server made a mistake: {type(error).__name__}; its log says where"}, request, 500
    )


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = []
    for one in error.errors()[:5]:
        where = ".".join(str(x) for x in one["loc"][1:]) or "the request"
        said.append(f"{where}: {re.sub(r'^Value error, ', '', one['msg'])}")
    return json_response({"error": "; ".join(said)}, request, 422)
