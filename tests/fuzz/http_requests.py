"""Requests to the viewer's HTTP API: a right one for every route, from the API's own description, and mutations of it.

The routes, their parameters and the fields of their bodies come from the OpenAPI description of the application, so a
new route is fuzzed without a change here. `SAMPLES` has right values for the fields whose schema does not say enough.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .mutators import VALUES, mutated_bytes, mutated_json

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from fastapi import FastAPI

PAGE = ("/", "/static/shell/shell.js", "/api/openapi.json")
"""What the server answers besides the routes that its description lists."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"]
TASKS = {
    "/api/translate": "translate",
    "/api/classify": "classify",
    "/api/inside": "generate",
    "/api/next": "generate",
    "/api/what-if": "generate",
    "/api/traces": "classify",
}
"""The task of a model that the route accepts with `SAMPLES`."""
WITH_MODEL = ("answers", "contributions", "silenced")
"""Routes of a trace that ask its model."""
SAMPLES: dict[str, Any] = {
    "text": "to be or not",
    "call": 1,
    "position": 3,
    "answer": 5,
    "heads": "0,2",
    "rows": "0:3",
    "cols": "1:",
    "bottom": 8,
    "right": 8,
    "height": 4,
    "width": 4,
    "generate": 0,
    "silence": {"decoder.layers.0.attention": [0]},
    "hide": [],
}
"""Right values by name: what a schema does not say, since it depends on the trace or on the model."""


@dataclass(frozen=True)
class Parts:
    """A request in parts. `path` may contain `{name}`, for which `parameters` has a value."""

    method: str
    path: str
    parameters: dict[str, Any]
    query: list[tuple[str, Any]]
    body: Any = b""

    @property
    def url(self) -> str:
        path = self.path
        for name, value in self.parameters.items():
            path = path.replace(f"{{{name}}}", _quoted(value))
        return path + "?" + "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in self.query)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of everything that the server answers."""
    described = [(method.upper(), path) for path, item in app.openapi()["paths"].items() for method in item]
    return described + [("GET", path) for path in PAGE]


def right_request(app: FastAPI, route: tuple[str, str], chance: Random, media: Path) -> Parts:
    """A request that the route accepts; `media` is a folder of pictures and sounds."""
    method, path = route
    if path in PAGE:
        return Parts(method, path, {}, [])
    description = app.openapi()
    operation = description["paths"][path][method.lower()]
    library = app.state.jobs.library
    models = [x.name for x in library.models.values() if x.task == TASKS.get(path)]
    without_model, with_model = list(library.traces)[:2]
    trace = with_model if any(name in path.split("/") for name in WITH_MODEL) else without_model
    own = {"heads": "0.0,1.2"} if path.endswith("/silenced") else {}
    samples = SAMPLES | own | {"trace": trace, "model": (models or [""])[0], "models": models[:2]}
    values: dict[str, dict[str, Any]] = {"path": {}, "query": {}}
    for parameter in operation.get("parameters", ()):
        values[parameter["in"]][parameter["name"]] = _value(parameter["name"], parameter["schema"], samples)
    body: Any = b""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if kind == "application/json":
            schema = description["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[1]]
            fields = schema["properties"].items()
            body = {name: _value(name, field, samples) for name, field in fields}
        else:
            suffixes = (".wav", ".flac", ".ogg") if path == "/api/listen" else (".png", ".jpg", ".webp", ".gif")
            body = chance.choice([x for x in sorted(media.iterdir()) if x.suffix in suffixes]).read_bytes()
    query = [(name, value) for name, value in values["query"].items() if value is not None]  # an address has no null
    return Parts(method, path, values["path"], query, body)


def _value(name: str, schema: dict[str, Any], samples: dict[str, Any]) -> Any:
    if name in samples:
        return samples[name]
    if "default" in schema or "enum" in schema:
        return schema.get("default", schema.get("enum", [None])[0])
    return schema.get("minimum")


def mutated_request(app: FastAPI, parts: Parts, chance: Random) -> Parts:
    """The request with another method, path, parameter, model or body, or as it is."""
    if isinstance(parts.body, dict) and "model" in parts.body and chance.random() < 0.4:
        parts = replace(parts, body=parts.body | {"model": chance.choice(sorted(app.state.jobs.library.models))})
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        match chance.randrange(5):
            case 0 if chance.random() < 0.3:
                parts = replace(parts, method=chance.choice(METHODS))
            case 1 if parts.parameters:
                name = chance.choice(sorted(parts.parameters))
                parts = replace(parts, parameters=parts.parameters | {name: _unusual(chance)})
            case 2 if parts.query:
                parts = replace(parts, query=_mutated_query(parts.query, chance))
            case 3 if isinstance(parts.body, bytes):
                parts = replace(parts, body=mutated_bytes(parts.body, chance))
            case 4 if chance.random() < 0.1:
                parts = replace(parts, body=mutated_bytes(parts.content, chance))
            case _ if not isinstance(parts.body, bytes):
                parts = replace(parts, body=mutated_json(parts.body, chance))
    return parts


def _mutated_query(query: list[tuple[str, Any]], chance: Random) -> list[tuple[str, Any]]:
    at = chance.randrange(len(query))
    name = query[at][0]
    changes = [[], [query[at], query[at]], [(name, _unusual(chance))], [(chance.choice(["x", "entry", ""]), 0)]]
    return [*query[:at], *chance.choice(changes), *query[at + 1 :]]


def _unusual(chance: Random) -> Any:
    spans = ["0:", ":", "3:1", "0:99999999", "0,1,2", "0,0,0,0", "99999", "max", "mean", "float16", "uint8"]
    return chance.choice([chance.randrange(-2, 20), chance.choice(spans), chance.choice(VALUES)])


def _quoted(value: Any) -> str:
    return quote(str(value)[:5000].encode("utf-8", errors="replace"), safe="")
